"""`/v1/chat/completions`: stateless unless a conversation is named, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, assert_never
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from pydantic import Field

from config.core.db import run_in_thread
from copilot.chat.turn_results import TurnResult
from copilot.openai_compat import requests, serializers
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
from copilot.openai_compat.errors import TurnEndedWithoutAnswer, TurnTimedOut
from copilot.openai_compat.requests import ChatMessage, ConversationParam, ConversationReference
from copilot.openai_compat.turns import (
    AnswerDelta,
    KeepAlive,
    TurnOrder,
    TurnOver,
    find_session_by_name,
    follow_answer,
    run_turn,
)

COMPLETION_ID_PREFIX = "chatcmpl-"
CONVERSATION_ID_PREFIX = "conv_"
OUTCOME_TIMEOUT_SECONDS = 600.0  # the default timeout of the official clients
DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"
_UNSUPPORTED_PARAMETERS = {
    "tools": "the agent uses its own tools.",
    "functions": "the agent uses its own tools.",
    "audio": "answers are text.",
    "logprobs": "the models do not report them.",
    "stop": "a turn cannot be cut at a given text.",
}


class ChatResponseFormat(LenientModel):
    type: str


class ChatStreamOptions(LenientModel):
    include_usage: bool = False


class ChatCompletionBody(LenientModel):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    reasoning_effort: str | None = None
    conversation: ConversationParam = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    response_format: ChatResponseFormat | None = None
    tools: object = None
    functions: object = None
    audio: object = None
    logprobs: object = None
    stop: object = None


@dataclass(frozen=True)
class CompletionSerializer:
    """The fields that every part of one answer repeats."""

    id: str
    model: str
    created: int

    def serialize_choices(
        self, kind: str, choices: list[dict[str, object]], **fields: object
    ) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **fields,
        }


async def create_completion(request: HttpRequest, caller: ApiCaller) -> HttpResponseBase:
    body = parse_body(request, ChatCompletionBody)
    order = await run_in_thread(_build_order, caller, body)
    if body.stream:
        return await render_event_stream(_stream_frames(caller, order, body))
    async with run_turn(caller, order) as run:
        outcome = await run.wait_for_outcome(OUTCOME_TIMEOUT_SECONDS)
        limited = await run_in_thread(run.is_limited, outcome)
    reason = _get_finish_reason(outcome, limited=limited)
    message = {"role": "assistant", "content": outcome.text + format_waiting_note(outcome), "refusal": None}
    choice: dict[str, object] = {
        "index": 0,
        "message": message,
        "finish_reason": reason,
        "logprobs": None,
    }
    head = CompletionSerializer(run.run_id, body.model, int(time.time()))
    return render_json(
        head.serialize_choices(
            "chat.completion", [choice], usage=serializers.serialize_chat_usage(outcome.usage)
        )
    )


chat_completions_view = build_view(POST=create_completion, is_stream=True)


def _build_order(caller: ApiCaller, body: ChatCompletionBody) -> TurnOrder:
    parameters = body.model_dump(include=set(_UNSUPPORTED_PARAMETERS))
    requests.refuse_unsupported_parameters(parameters, _UNSUPPORTED_PARAMETERS)
    if body.response_format is not None:
        requests.refuse_unsupported_format(body.response_format.type)
    return TurnOrder(
        request=requests.parse_chat_messages(body.messages),
        tier=resolve_tier(body.model),
        mode=requests.map_effort_to_mode(body.reasoning_effort),
        prefix=COMPLETION_ID_PREFIX,
        session_id=find_conversation(caller, body.conversation),
    )


def find_conversation(caller: ApiCaller, reference: str | ConversationReference | None) -> UUID | None:
    if reference is None:
        return None
    name = reference if isinstance(reference, str) else reference.id
    return find_session_by_name(caller.user_id, name, prefix=CONVERSATION_ID_PREFIX)


def format_waiting_note(outcome: TurnResult) -> str:
    """Tell the caller where a person can decide: this API cannot deliver the rest of the answer later."""
    if outcome.status != "waiting":
        return ""
    separator = "\n\n" if outcome.text else ""
    return f"{separator}Waiting for your approval: {outcome.link}"


def _get_finish_reason(outcome: TurnResult, *, limited: bool) -> str:
    match outcome.status:
        case "succeeded":
            return "length" if limited else "stop"
        case "waiting":
            return "stop"
        case "failed" | "cancelled":
            raise TurnEndedWithoutAnswer.from_outcome_error(outcome.error)
        case "running" | "queued":
            raise TurnTimedOut("The answer took too long.", hint="Use stream: true to wait longer.")
        case unreachable:
            assert_never(unreachable)


async def _stream_frames(
    caller: ApiCaller, order: TurnOrder, body: ChatCompletionBody
) -> AsyncGenerator[bytes, None]:
    async with run_turn(caller, order) as run:
        head = CompletionSerializer(run.run_id, body.model, int(time.time()))
        yield _encode_chunk(head, {"role": "assistant", "content": ""})
        async for update in follow_answer(run):
            match update:
                case AnswerDelta(delta):
                    yield _encode_chunk(head, {"content": delta})
                case KeepAlive():
                    yield KEEP_ALIVE_FRAME
                case TurnOver(outcome, limited=limited):
                    reason = _get_finish_reason(outcome, limited=limited)
                    if note := format_waiting_note(outcome):
                        yield _encode_chunk(head, {"content": note})
                    yield _encode_chunk(head, {}, reason)
                    if body.stream_options is not None and body.stream_options.include_usage:
                        usage = serializers.serialize_chat_usage(outcome.usage)
                        yield encode_frame(head.serialize_choices("chat.completion.chunk", [], usage=usage))
                    yield DONE_FRAME
                case unreachable:
                    assert_never(unreachable)


def _encode_chunk(head: CompletionSerializer, delta: dict[str, object], reason: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return encode_frame(head.serialize_choices("chat.completion.chunk", [choice]))
