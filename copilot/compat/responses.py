"""`/v1/responses`: a response is a message of a session and its answer; the next may continue it (E4.2)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal, assert_never
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from copilot import outcomes
from copilot.bridge import in_thread
from copilot.compat import asking
from copilot.compat.asking import Conversation, Item
from copilot.compat.chat import CONVERSATION, KEEP_ALIVE, WAIT_SECONDS, conversation_of, waiting_note
from copilot.compat.doors import Caller, Lenient, answer, body_of, door, frame_of, streamed
from copilot.compat.errors import TooSlow
from copilot.compat.following import Extended, Over, Silence, follow
from copilot.compat.models import tier_of
from copilot.compat.replies import Reply, Writing
from copilot.compat.running import Order, Run, continued, message_of, running
from copilot.errors import InvalidRequest
from copilot.models import Turn
from copilot.outcomes import Outcome

PREFIX = "resp_"
_UNKEPT = {
    "tools": "the agent uses its own tools.",
    "background": "this door cannot deliver later.",
    "prompt": "there are no stored prompts here.",
}


class Reasoning(Lenient):
    effort: str | None = None


class Format(Lenient):
    type: str


class Text(Lenient):
    format: Format | None = None


class Body(Lenient):
    model: str
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Conversation = None
    store: bool | None = None
    stream: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    tools: object = None
    background: object = None
    prompt: object = None


async def create(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    body = body_of(request, Body)
    order = await in_thread(_order, caller, body)
    if body.stream:
        return await streamed(_frames(caller, order, body))
    async with running(caller, order) as run:
        outcome = await outcomes.wait(
            caller.user_id,
            run.turn_id,
            run_id=run.run_id,
            timeout_seconds=WAIT_SECONDS,
            connection=caller.connection,
        )
        limited = await in_thread(_is_limited, run, outcome)
    if outcome.status in ("running", "queued") and not run.kept:
        raise TooSlow("The turn took too long to wait for.", hint="Ask with stream: true.")
    return answer(_reply(run, body).told(outcome, text=outcome.text + waiting_note(outcome), limited=limited))


async def retrieve(request: HttpRequest, caller: Caller, response_id: str) -> HttpResponseBase:
    """A response as its rows have it now, for whoever did not wait for it."""
    return answer(await in_thread(_retrieved, caller, response_id))


responses = door(POST=create, is_stream=True)
response = door(GET=retrieve)


def _order(caller: Caller, body: Body) -> Order:
    asking.refuse_unkept(body.model_dump(include=set(_UNKEPT)), _UNKEPT)
    if body.text is not None and body.text.format is not None:
        asking.refuse_format(body.text.format.type)
    return Order(
        asked=asking.of_input(body.input, body.instructions),
        tier=tier_of(body.model),
        mode=asking.mode_for(body.reasoning.effort if body.reasoning else None),
        prefix=PREFIX,
        kept=body.store is not False,
        session_id=_session_of(caller, body),
    )


def _session_of(caller: Caller, body: Body) -> UUID | None:
    if body.previous_response_id is None:
        return conversation_of(caller, body.conversation)
    if body.conversation is not None:
        raise InvalidRequest("Give conversation or previous_response_id, not both.", param="conversation")
    return continued(caller.user_id, body.previous_response_id, prefix=PREFIX)


def _is_limited(run: Run, outcome: Outcome) -> bool:
    return outcome.status == "succeeded" and bool(run.limit_code(outcome))


def _reply(run: Run, body: Body) -> Reply:
    return Reply(
        id=run.run_id,
        model=body.model,
        created_at=int(time.time()),
        conversation_id=f"{CONVERSATION}{run.session_id.hex}",
        kept=run.kept,
        previous_response_id=body.previous_response_id,
        instructions=body.instructions,
    )


def _retrieved(caller: Caller, response_id: str) -> dict[str, object]:
    message = message_of(caller.user_id, response_id, prefix=PREFIX)
    reply = Reply(
        id=response_id,
        model=message.tier or "standard",
        created_at=int(message.created_at.timestamp()),
        conversation_id=f"{CONVERSATION}{message.session_id.hex}",
    )
    if message.turn_id is None:
        status: Literal["cancelled", "queued"] = "cancelled" if message.dropped_at else "queued"
        return reply.told(Outcome(turn_id="", status=status), text="")
    outcome = outcomes.at_once(caller.user_id, message.turn_id, run_id=response_id)
    limited = Turn.objects.filter(pk=message.turn_id).exclude(limit_code="").exists()
    return reply.told(outcome, text=outcome.text + waiting_note(outcome), limited=limited)


async def _frames(caller: Caller, order: Order, body: Body) -> AsyncGenerator[bytes, None]:
    async with running(caller, order) as run:
        writing = Writing(_reply(run, body))
        for event in writing.begin():
            yield _frame(event)
        async for happened in follow(run):
            match happened:
                case Extended(delta):
                    yield _frame(writing.extend(delta))
                case Silence():
                    yield KEEP_ALIVE
                case Over(outcome, text):
                    note = waiting_note(replace(outcome, text=text))
                    if note:
                        yield _frame(writing.extend(note))
                    limited = await in_thread(_is_limited, run, outcome)
                    for event in writing.end(outcome, limited=limited):
                        yield _frame(event)
                case unreachable:
                    assert_never(unreachable)


def _frame(event: dict[str, object]) -> bytes:
    return frame_of(event, event=str(event["type"]))
