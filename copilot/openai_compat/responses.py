"""`/v1/responses`: a response is a message of a session with its answer, and the next one may continue it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal, assert_never
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest
from copilot.chat import turn_results
from copilot.chat.turn_results import TurnResult
from copilot.models import Turn
from copilot.openai_compat import requests
from copilot.openai_compat.base import (
    ApiCaller,
    LenientModel,
    build_view,
    encode_frame,
    parse_body,
    render_event_stream,
    render_json,
    resolve_tier,
)
from copilot.openai_compat.chat_completions import (
    CONVERSATION_ID_PREFIX,
    KEEP_ALIVE_FRAME,
    OUTCOME_TIMEOUT_SECONDS,
    find_conversation,
    format_waiting_note,
)
from copilot.openai_compat.errors import TurnTimedOut
from copilot.openai_compat.requests import ConversationParam, ResponseInputItem
from copilot.openai_compat.serializers import ResponseEventWriter, ResponseSerializer
from copilot.openai_compat.turns import (
    AcceptedTurn,
    AnswerDelta,
    KeepAlive,
    TurnOrder,
    TurnOver,
    find_run_message,
    find_session_to_continue,
    follow_answer,
    run_turn,
)

RESPONSE_ID_PREFIX = "resp_"
_UNSUPPORTED_PARAMETERS = {
    "tools": "the agent uses its own tools.",
    "background": "answers cannot be delivered later.",
    "prompt": "there are no stored prompts.",
}


class ReasoningOptions(LenientModel):
    effort: str | None = None


class ResponseTextFormat(LenientModel):
    type: str


class ResponseTextOptions(LenientModel):
    format: ResponseTextFormat | None = None


class CreateResponseBody(LenientModel):
    model: str
    input: str | list[ResponseInputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationParam = None
    store: bool | None = None
    stream: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: ResponseTextOptions | None = None
    tools: object = None
    background: object = None
    prompt: object = None


async def create_response(request: HttpRequest, caller: ApiCaller) -> HttpResponseBase:
    body = parse_body(request, CreateResponseBody)
    order = await run_in_thread(_build_order, caller, body)
    if body.stream:
        return await render_event_stream(_stream_frames(caller, order, body))
    async with run_turn(caller, order) as run:
        outcome = await run.wait_for_outcome(OUTCOME_TIMEOUT_SECONDS)
        limited = await run_in_thread(run.is_limited, outcome)
    if outcome.status in ("running", "queued") and not run.kept:
        raise TurnTimedOut("The answer took too long.", hint="Use stream: true to wait longer.")
    return render_json(
        _build_serializer(run, body).serialize_outcome(
            outcome, text=outcome.text + format_waiting_note(outcome), limited=limited
        )
    )


async def retrieve_response(request: HttpRequest, caller: ApiCaller, response_id: str) -> HttpResponseBase:
    """Return a response as stored now, for clients that did not wait for it."""
    return render_json(await run_in_thread(_serialize_stored_response, caller, response_id))


responses_view = build_view(POST=create_response, is_stream=True)
response_view = build_view(GET=retrieve_response)


def _build_order(caller: ApiCaller, body: CreateResponseBody) -> TurnOrder:
    requests.refuse_unsupported_parameters(
        body.model_dump(include=set(_UNSUPPORTED_PARAMETERS)), _UNSUPPORTED_PARAMETERS
    )
    if body.text is not None and body.text.format is not None:
        requests.refuse_unsupported_format(body.text.format.type)
    return TurnOrder(
        request=requests.parse_response_input(body.input, body.instructions),
        tier=resolve_tier(body.model),
        mode=requests.map_effort_to_mode(body.reasoning.effort if body.reasoning else None),
        prefix=RESPONSE_ID_PREFIX,
        kept=body.store is not False,
        session_id=_find_session(caller, body),
    )


def _find_session(caller: ApiCaller, body: CreateResponseBody) -> UUID | None:
    if body.previous_response_id is None:
        return find_conversation(caller, body.conversation)
    if body.conversation is not None:
        raise InvalidRequest("Send conversation or previous_response_id, not both.", param="conversation")
    return find_session_to_continue(caller.user_id, body.previous_response_id, prefix=RESPONSE_ID_PREFIX)


def _build_serializer(run: AcceptedTurn, body: CreateResponseBody) -> ResponseSerializer:
    return ResponseSerializer(
        id=run.run_id,
        model=body.model,
        created_at=int(time.time()),
        conversation_id=f"{CONVERSATION_ID_PREFIX}{run.session_id.hex}",
        kept=run.kept,
        previous_response_id=body.previous_response_id,
        instructions=body.instructions,
    )


def _serialize_stored_response(caller: ApiCaller, response_id: str) -> dict[str, object]:
    message = find_run_message(caller.user_id, response_id, prefix=RESPONSE_ID_PREFIX)
    serializer = ResponseSerializer(
        id=response_id,
        model=message.tier or "standard",
        created_at=int(message.created_at.timestamp()),
        conversation_id=f"{CONVERSATION_ID_PREFIX}{message.session_id.hex}",
    )
    if message.turn_id is None:
        status: Literal["cancelled", "queued"] = "cancelled" if message.dropped_at else "queued"
        return serializer.serialize_outcome(TurnResult(turn_id="", status=status), text="")
    outcome = turn_results.get_turn_result(caller.user_id, message.turn_id, run_id=response_id)
    limited = Turn.objects.filter(pk=message.turn_id).exclude(limit_code="").exists()
    return serializer.serialize_outcome(
        outcome, text=outcome.text + format_waiting_note(outcome), limited=limited
    )


async def _stream_frames(
    caller: ApiCaller, order: TurnOrder, body: CreateResponseBody
) -> AsyncGenerator[bytes, None]:
    async with run_turn(caller, order) as run:
        writer = ResponseEventWriter(_build_serializer(run, body))
        for event in writer.begin():
            yield _encode_event(event)
        async for update in follow_answer(run):
            match update:
                case AnswerDelta(delta):
                    yield _encode_event(writer.extend(delta))
                case KeepAlive():
                    yield KEEP_ALIVE_FRAME
                case TurnOver(outcome, text, limited):
                    note = format_waiting_note(replace(outcome, text=text))
                    if note:
                        yield _encode_event(writer.extend(note))
                    for event in writer.end(outcome, limited=limited):
                        yield _encode_event(event)
                case unreachable:
                    assert_never(unreachable)


def _encode_event(event: dict[str, object]) -> bytes:
    return encode_frame(event, event=str(event["type"]))
