"""`/v1/chat/completions`: stateless, unless a conversation is named; whole or as it is written (E4.2)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, assert_never
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from pydantic import Field

from copilot.bridge import in_thread
from copilot.compat import asking, figures
from copilot.compat.asking import ChatMessage, Conversation, Reference
from copilot.compat.doors import Caller, Lenient, answer, body_of, door, frame_of, streamed
from copilot.compat.errors import Ended, TooSlow
from copilot.compat.following import Extended, Over, Silence, follow
from copilot.compat.models import tier_of
from copilot.compat.running import Order, Run, running, session_named
from copilot.outcomes import Outcome, wait

PREFIX = "chatcmpl-"
CONVERSATION = "conv_"
WAIT_SECONDS = 600.0  # the official clients' own patience
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_UNKEPT = {
    "tools": "the agent uses its own tools.",
    "functions": "the agent uses its own tools.",
    "audio": "answers are text.",
    "logprobs": "the models behind a turn do not tell them.",
    "stop": "a turn ends by itself.",
}


class Format(Lenient):
    type: str


class StreamOptions(Lenient):
    include_usage: bool = False


class Body(Lenient):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: str | None = None
    conversation: Conversation = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    response_format: Format | None = None
    tools: object = None
    functions: object = None
    audio: object = None
    logprobs: object = None
    stop: object = None


@dataclass(frozen=True)
class Head:
    """What every part of one answer repeats."""

    id: str
    model: str
    created: int

    def said(self, kind: str, choices: list[dict[str, object]], **fields: object) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **fields,
        }


async def complete(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    body = body_of(request, Body)
    order = await in_thread(_order, caller, body)
    if body.stream:
        return await streamed(_frames(caller, order, body))
    async with running(caller, order) as run:
        outcome = await wait(
            caller.user_id,
            run.turn_id,
            run_id=run.run_id,
            timeout_seconds=WAIT_SECONDS,
            connection=caller.connection,
        )
        reason = await in_thread(_finish_reason, run, outcome)
    message = {"role": "assistant", "content": outcome.text + waiting_note(outcome), "refusal": None}
    choice: dict[str, object] = {
        "index": 0,
        "message": message,
        "finish_reason": reason,
        "logprobs": None,
    }
    head = Head(run.run_id, body.model, int(time.time()))
    return answer(head.said("chat.completion", [choice], usage=figures.of_chat(outcome.usage)))


completions = door(POST=complete, is_stream=True)


def _order(caller: Caller, body: Body) -> Order:
    unkept = body.model_dump(include=set(_UNKEPT))
    asking.refuse_unkept(unkept, _UNKEPT)
    if body.response_format is not None:
        asking.refuse_format(body.response_format.type)
    return Order(
        asked=asking.of_chat(body.messages),
        tier=tier_of(body.model),
        mode=asking.mode_for(body.reasoning_effort),
        prefix=PREFIX,
        session_id=conversation_of(caller, body.conversation),
    )


def conversation_of(caller: Caller, named: str | Reference | None) -> UUID | None:
    if named is None:
        return None
    name = named if isinstance(named, str) else named.id
    return session_named(caller.user_id, name, prefix=CONVERSATION)


def waiting_note(outcome: Outcome) -> str:
    """These doors cannot deliver later: the caller is told where a person decides (A31.4)."""
    if outcome.status != "waiting":
        return ""
    between = "\n\n" if outcome.text else ""
    return f"{between}Waiting for a decision before going on: {outcome.link}"


def _finish_reason(run: Run, outcome: Outcome) -> str:
    match outcome.status:
        case "succeeded":
            return "length" if run.limit_code(outcome) else "stop"
        case "waiting":
            return "stop"
        case "failed" | "cancelled":
            raise Ended.of(outcome.error)
        case "running" | "queued":
            raise TooSlow("The turn took too long to wait for.", hint="Ask with stream: true.")
        case unreachable:
            assert_never(unreachable)


async def _frames(caller: Caller, order: Order, body: Body) -> AsyncGenerator[bytes, None]:
    async with running(caller, order) as run:
        head = Head(run.run_id, body.model, int(time.time()))
        yield _chunk(head, {"role": "assistant", "content": ""})
        async for happened in follow(run):
            match happened:
                case Extended(delta):
                    yield _chunk(head, {"content": delta})
                case Silence():
                    yield KEEP_ALIVE
                case Over(outcome):
                    reason = await in_thread(_finish_reason, run, outcome)
                    if note := waiting_note(outcome):
                        yield _chunk(head, {"content": note})
                    yield _chunk(head, {}, reason)
                    if body.stream_options is not None and body.stream_options.include_usage:
                        usage = figures.of_chat(outcome.usage)
                        yield frame_of(head.said("chat.completion.chunk", [], usage=usage))
                    yield DONE
                case unreachable:
                    assert_never(unreachable)


def _chunk(head: Head, delta: dict[str, object], reason: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return frame_of(head.said("chat.completion.chunk", [choice]))
