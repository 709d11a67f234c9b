"""`/v1/chat/completions`: stateless unless a conversation is named, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest
from copilot.agent.structured_output import unwrap_json
from copilot.chat.commands import clean_text
from copilot.chat.turn_context import ApiRequest
from copilot.chat.turn_results import ClientCall, TurnResult
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
from copilot.openai_compat.errors import TurnTimedOut, build_failure
from copilot.openai_compat.requests import (
    ChatMessage,
    ConversationParam,
    ConversationReference,
    FunctionDefinition,
    JsonSchemaFormat,
    SharedParameters,
    TurnRequest,
)
from copilot.openai_compat.turns import (
    AnswerDelta,
    KeepAlive,
    TurnOrder,
    TurnOver,
    find_session_by_name,
    follow_answer,
    run_turn,
)
from copilot.providers.base import RequestParameters

COMPLETION_ID_PREFIX = "chatcmpl-"
CONVERSATION_ID_PREFIX = "conv_"
OUTCOME_TIMEOUT_SECONDS = 600.0  # the default timeout of the official clients
DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"
_UNSUPPORTED_PARAMETERS = {
    "functions": "use tools.",
    "function_call": "use tool_choice.",
    "audio": "answers are text.",
    "logprobs": "the models do not report them.",
    "top_logprobs": "the models do not report them.",
    "logit_bias": "tokens cannot be weighted.",
    "presence_penalty": "repetition cannot be weighted.",
    "frequency_penalty": "repetition cannot be weighted.",
    "prediction": "answers cannot be predicted.",
    "web_search_options": "the assistant searches the web by itself.",
}


class ChatResponseFormat(LenientModel):
    type: str
    json_schema: JsonSchemaFormat | None = None


class ChatStreamOptions(LenientModel):
    include_usage: bool = False


class ChatTool(LenientModel):
    type: str
    function: FunctionDefinition | None = None


class ChatToolChoiceFunction(LenientModel):
    name: str


class ChatToolChoice(LenientModel):
    type: str
    function: ChatToolChoiceFunction | None = None


class ChatCompletionBody(SharedParameters):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    reasoning_effort: str | None = None
    conversation: ConversationParam = None
    store: bool | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    response_format: ChatResponseFormat | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatToolChoice | None = None
    functions: object = None
    function_call: object = None
    audio: object = None
    logprobs: object = None
    logit_bias: object = None
    presence_penalty: object = None
    frequency_penalty: object = None
    prediction: object = None
    web_search_options: object = None


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
    body, order = await run_in_thread(_read_order, request, caller)
    if body.stream:
        return await render_event_stream(_stream_frames(caller, order, body))
    async with run_turn(caller, order) as run:
        outcome = await run.wait_for_outcome(OUTCOME_TIMEOUT_SECONDS)
    answer = CompletionAnswer.from_outcome(outcome, order)
    choice: dict[str, object] = {
        "index": 0,
        "message": answer.serialize_message(),
        "finish_reason": answer.finish_reason,
        "logprobs": None,
    }
    head = CompletionSerializer(run.run_id, body.model, int(time.time()))
    return render_json(
        head.serialize_choices(
            "chat.completion", [choice], usage=serializers.serialize_chat_usage(outcome.usage)
        )
    )


chat_completions_view = build_view(POST=create_completion, is_stream=True)


def _read_order(request: HttpRequest, caller: ApiCaller) -> tuple[ChatCompletionBody, TurnOrder]:
    body = parse_body(request, ChatCompletionBody)
    parameters = body.model_dump(include=set(_UNSUPPORTED_PARAMETERS))
    requests.refuse_unsupported_parameters(parameters, _UNSUPPORTED_PARAMETERS)
    requests.check_service_tier(body.service_tier)
    tier = resolve_tier(body.model)
    turn_request = requests.parse_chat_messages(body.messages)
    api_request = _build_api_request(body, turn_request)
    requests.check_parameters(api_request.parameters, tier, [tool.name for tool in api_request.tools])
    order = TurnOrder(
        request=turn_request,
        tier=tier,
        mode=requests.map_effort_to_mode(body.reasoning_effort),
        prefix=COMPLETION_ID_PREFIX,
        kept=bool(body.store),
        session_id=find_conversation(caller, body.conversation),
        api_request=api_request,
        client_only=body.pilothouse is not None and body.pilothouse.tools == "client_only",
    )
    return body, order


def _build_api_request(body: ChatCompletionBody, turn_request: TurnRequest) -> ApiRequest:
    functions = []
    for tool in body.tools or ():
        if tool.type != "function" or tool.function is None:
            raise requests.refuse_parameter("tools", f"tools of type {tool.type[:50]!r} are unknown.")
        functions.append(tool.function)
    choice = _parse_tool_choice(body.tool_choice)
    wanted = body.response_format
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > requests.MAX_STOP_SEQUENCES or not all(0 < len(text) <= 200 for text in stop):
        raise InvalidRequest("stop takes up to four texts of 1 to 200 characters.", param="stop")
    return ApiRequest(
        instructions=clean_text(turn_request.instructions),
        tools=requests.build_client_tools(functions),
        parameters=RequestParameters(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop=tuple(stop),
            seed=body.seed,
            tool_choice=choice.choice,
            forced_tool=choice.name,
            parallel_tool_calls=body.parallel_tool_calls if functions else None,
            output_format=requests.build_output_format(
                wanted.type, wanted.json_schema, param="response_format"
            )
            if wanted is not None
            else None,
        ),
        metadata=dict(body.metadata or {}),
        user=body.user or body.safety_identifier or "",
    )


def _parse_tool_choice(value: str | ChatToolChoice | None) -> requests.ToolChoice:
    match value:
        case None:
            return requests.ToolChoice()
        case "auto" | "none" | "required":
            return requests.ToolChoice(choice=value)
        case ChatToolChoice(type="function", function=ChatToolChoiceFunction(name=name)):
            return requests.ToolChoice(choice="tool", name=name)
        case _:
            raise requests.refuse_parameter("tool_choice", "use auto, none, required or a function.")


def find_conversation(caller: ApiCaller, reference: str | ConversationReference | None) -> UUID | None:
    if reference is None:
        return None
    name = reference if isinstance(reference, str) else reference.id
    return find_session_by_name(caller.user_id, name, prefix=CONVERSATION_ID_PREFIX)


def format_waiting_note(outcome: TurnResult) -> str:
    """Tell the caller where a person can decide: this API cannot deliver the rest of the answer later."""
    if outcome.status != "waiting" or outcome.client_calls:
        return ""
    separator = "\n\n" if outcome.text else ""
    ids = ", ".join(outcome.approval_ids)
    return f"{separator}Waiting for your approval ({ids}): {outcome.link}"


@dataclass(frozen=True, kw_only=True)
class CompletionAnswer:
    """The message of a completion and why it ended."""

    text: str
    finish_reason: str
    refusal: str | None = None
    calls: Sequence[ClientCall] = ()

    @classmethod
    def from_outcome(cls, outcome: TurnResult, order: TurnOrder) -> CompletionAnswer:
        """Build the answer, or raise the failure that it ended with."""
        text = get_answer_text(outcome, order)
        if outcome.client_calls:
            return cls(text=text, finish_reason="tool_calls", calls=outcome.client_calls)
        match outcome.status:
            case "succeeded" if (refusal := find_refusal(outcome)) is not None:
                return cls(text="", finish_reason="stop", refusal=refusal)
            case "succeeded":
                return cls(text=text, finish_reason="length" if outcome.limit_code else "stop")
            case "waiting":
                return cls(text=text + format_waiting_note(outcome), finish_reason="stop")
            case "failed" if outcome.error is not None and outcome.error.code == "output_truncated":
                return cls(text=text, finish_reason="length")
            case "failed" if (refusal := find_refusal(outcome)) is not None:
                return cls(text="", finish_reason="content_filter", refusal=refusal)
            case "failed" | "cancelled":
                raise build_failure(outcome.error)
            case "running" | "queued":
                raise TurnTimedOut("The answer took too long.", hint="Use stream: true to wait longer.")
            case unreachable:
                assert_never(unreachable)

    def serialize_message(self) -> dict[str, object]:
        message: dict[str, object] = {
            "role": "assistant",
            "content": self.text or None if self.calls or self.refusal else self.text,
            "refusal": self.refusal,
            "annotations": [],
        }
        if self.calls:
            message["tool_calls"] = [serialize_call(call) for call in self.calls]
        return message


def get_answer_text(outcome: TurnResult, order: TurnOrder) -> str:
    """Return the text of the answer; JSON is the last block alone, whatever was said before tools ran."""
    if not order.wants_json or outcome.client_calls:
        return outcome.text
    return unwrap_json(outcome.last_text)


def find_refusal(outcome: TurnResult) -> str | None:
    """Return what to tell the caller instead of an answer that the model refused, or gave in another format."""
    if outcome.limit_code == "invalid_output":
        return "The model did not answer in the format that was asked for."
    if outcome.error is not None and outcome.error.code == "refused":
        return outcome.text or outcome.error.message
    return None


def serialize_call(call: ClientCall) -> dict[str, object]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.tool, "arguments": call.arguments_json},
    }


async def _stream_frames(
    caller: ApiCaller, order: TurnOrder, body: ChatCompletionBody
) -> AsyncGenerator[bytes, None]:
    async with run_turn(caller, order) as run:
        head = CompletionSerializer(run.run_id, body.model, int(time.time()))
        yield _encode_chunk(head, {"role": "assistant", "content": "", "refusal": None})
        async for update in follow_answer(run, order):
            match update:
                case AnswerDelta(delta):
                    yield _encode_chunk(head, {"content": delta})
                case KeepAlive():
                    yield KEEP_ALIVE_FRAME
                case TurnOver(outcome):
                    for frame in _encode_ending(head, CompletionAnswer.from_outcome(outcome, order), outcome):
                        yield frame
                    if body.stream_options is not None and body.stream_options.include_usage:
                        usage = serializers.serialize_chat_usage(outcome.usage)
                        yield encode_frame(head.serialize_choices("chat.completion.chunk", [], usage=usage))
                    yield DONE_FRAME
                case unreachable:
                    assert_never(unreachable)


def _encode_ending(
    head: CompletionSerializer, answer: CompletionAnswer, outcome: TurnResult
) -> Iterator[bytes]:
    if note := format_waiting_note(outcome):
        yield _encode_chunk(head, {"content": note})
    if answer.refusal is not None:
        yield _encode_chunk(head, {"refusal": answer.refusal})
    for number, call in enumerate(answer.calls):
        yield _encode_chunk(head, {"tool_calls": [{"index": number, **serialize_call(call)}]})
    yield _encode_chunk(head, {}, answer.finish_reason)


def _encode_chunk(head: CompletionSerializer, delta: dict[str, object], reason: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return encode_frame(head.serialize_choices("chat.completion.chunk", [choice]))
