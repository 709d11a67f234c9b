"""Stream replies of OpenAI's Responses API, storing nothing there: sent by the official SDK, decoded here."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import httpx2
import msgspec
import structlog

from config.core.json_values import JSON
from copilot.providers import failures, http_stream, token_counts
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    FinishReason,
    ImagePart,
    ModelMessage,
    ModelRequest,
    OutputFormat,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    ResponseIdReceived,
    StreamItem,
    TextDelta,
    ToolCall,
    ToolResultsMessage,
    ToolSpecification,
    UsageReported,
    UserMessage,
    get_request_effort,
    is_continuation,
    join_system_text,
    merge_adjacent_messages,
)
from copilot.providers.openai_chat import OpenAIClient
from copilot.providers.text_filter import TextFilter

log = structlog.get_logger(__name__)


MAX_CALL_ID_CHARACTERS = 64  # the API refuses longer ids, which other vendors make


# --- The request ---


def encode_request(request: ModelRequest) -> bytes:
    """Encode the body, with what never changes first and the items last, for the prefix cache."""
    entry = request.entry
    body: dict[str, JSON] = {"model": entry.model, "stream": True, "store": False}
    if entry.max_output_tokens:
        body["max_output_tokens"] = entry.max_output_tokens
    if request.effective_temperature is not None:
        body["temperature"] = request.effective_temperature
    reasoning = _reasoning_fields(request)
    body |= reasoning
    if request.parameters.top_p is not None:
        body["top_p"] = request.parameters.top_p
    if (wanted := request.parameters.output_format) is not None:
        body["text"] = {"format": _encode_format(wanted)}
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        body |= _tool_choice_fields(request)
    if system := join_system_text(request):
        body["instructions"] = system
    reasoning_model = entry.model if reasoning else ""
    items: list[JSON] = []
    for message in merge_adjacent_messages(request.messages):
        items += _encode_items(message, images=entry.supports_images, reasoning_model=reasoning_model)
    body["input"] = items
    return msgspec.json.encode(body)


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Send nothing unless the catalogue declares how to request it; some models refuse even `include`."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    if request.entry.reasoning_style not in ("effort", "gateway"):
        return {}
    fields: dict[str, JSON] = {"effort": get_request_effort(request), "summary": "auto"}
    return {"include": ["reasoning.encrypted_content"], "reasoning": fields}


def _encode_format(wanted: OutputFormat) -> JSON:
    if wanted.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}


def _tool_choice_fields(request: ModelRequest) -> dict[str, JSON]:
    parameters = request.parameters
    fields: dict[str, JSON] = {}
    if parameters.tool_choice == "tool":
        fields["tool_choice"] = {"type": "function", "name": parameters.forced_tool}
    elif parameters.tool_choice != "auto":
        fields["tool_choice"] = parameters.tool_choice
    if parameters.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = parameters.parallel_tool_calls
    return fields


def _encode_tool(tool: ToolSpecification) -> JSON:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": False,  # the default is true, which refuses optional parameters
    }


def _encode_items(message: ModelMessage, *, images: bool, reasoning_model: str) -> list[JSON]:
    match message:
        case UserMessage():
            content = _encode_content(message.text, message.images, images)
            return [{"type": "message", "role": "user", "content": content}]
        case AssistantMessage():
            return _encode_reply(message, reasoning_model)
        case ToolResultsMessage():
            return [
                {
                    "type": "function_call_output",
                    "call_id": _shorten_call_id(r.call_id),
                    "output": _encode_content(r.content, r.images, images),
                }
                for r in message.results
            ]
        case unreachable:
            assert_never(unreachable)


def _encode_content(text: str, images: Sequence[ImagePart], supports_images: bool) -> JSON:
    """Use plain text unless there are images to send; then put the text first."""
    if not images or not supports_images:
        return text
    parts: list[JSON] = [{"type": "input_text", "text": text}] if text else []
    return parts + [
        {"type": "input_image", "image_url": image.data_url, "detail": "auto"} for image in images
    ]


def _encode_reply(message: AssistantMessage, reasoning_model: str) -> list[JSON]:
    """Put each reasoning item before what it led to; one that led to nothing would be refused."""
    thoughts = [thought for data in message.replay if (thought := _decode_replay(data, reasoning_model))]
    items: list[JSON] = []
    if message.text.strip():
        items += [thought.item for thought in thoughts if thought.is_leading]
        items.append({"type": "message", "role": "assistant", "content": message.text})
        thoughts = [thought for thought in thoughts if not thought.is_leading]
    for number, call in enumerate(message.calls):
        items += [thought.item for thought in thoughts if thought.after_calls == number]
        items.append(_encode_call(call))
    return items


def _encode_call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {
        "type": "function_call",
        "call_id": _shorten_call_id(call.call_id),
        "name": call.tool,
        "arguments": arguments,
    }


def _shorten_call_id(call_id: str) -> str:
    if len(call_id) <= MAX_CALL_ID_CHARACTERS:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


# --- Replayed reasoning ---


class SealedReasoning(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_responses"):
    """An encrypted reasoning item and its position in the reply. Only its own model can read it."""

    model: str
    sealed: str  # the item's JSON
    after_text: bool = False
    after_calls: int = 0

    @property
    def is_leading(self) -> bool:
        return not self.after_text and not self.after_calls

    @property
    def item(self) -> JSON:
        value: JSON = msgspec.json.decode(self.sealed)
        return value


_replay_decoder = msgspec.json.Decoder(SealedReasoning)


def _decode_replay(data: str, reasoning_model: str) -> SealedReasoning | None:
    """Decode reasoning of this wire format and model; that of others is left out."""
    try:
        thought = _replay_decoder.decode(data)
    except msgspec.DecodeError:
        return None
    return thought if thought.model == reasoning_model else None


# --- The stream ---
# Fields that servers fill freely are `object`, so that a surprise in one does not break the whole event.


class ResponseObject(msgspec.Struct):
    """The status of a response, without the instructions and output that it repeats."""

    id: object = None
    status: object = None
    error: object = None
    incomplete_details: object = None
    usage: object = None


class ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: object = None
    output_index: int | None = None
    item: object = None
    response: ResponseObject | None = None
    error: object = None


_decoder = msgspec.json.Decoder(ResponsesEvent)


def get_incomplete_reason(response: ResponseObject) -> str:
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else ""


def encode_error(response: ResponseObject) -> str:
    """Encode only the error of a failed response, because the rest contains the conversation."""
    error = response.error or {"message": "the provider gave no reason"}
    return msgspec.json.encode({"error": error}).decode()


INCOMPLETE_REASONS: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_messages": "length",
    "content_filter": "refused",
}
PARAGRAPH_SEPARATOR = "\n\n"


class OpenAIResponsesProvider:
    def __init__(
        self,
        *,
        credential: str,
        base_url: str = "",
        idle_seconds: float = http_stream.IDLE_TIMEOUT_SECONDS,
        connect_seconds: float = http_stream.CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self._client = OpenAIClient(
            credential=credential,
            base_url=base_url,
            timeout=http_stream.build_timeout(idle_seconds, connect_seconds),
        )

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        body = encode_request(request)

        async def open_response() -> httpx2.Response:
            return await self._client.post("/responses", body)

        return http_stream.stream_reply(
            open_response,
            ResponsesReplyDecoder(model=request.entry.model, continues=is_continuation(request.messages)),
            first_seconds=request.entry.first_token_timeout_seconds,
        )

    async def aclose(self) -> None:
        await self._client.aclose()


class ResponsesReplyDecoder:
    """Turn stream events into items, without any knowledge of the network."""

    def __init__(self, *, model: str = "", continues: bool = False) -> None:
        self.finished = False
        self.started = False
        self._model = model
        self._reason: FinishReason = "stop"
        self.response_id = ""
        self._failure: ProviderFailure | None = None
        self._filter = TextFilter(continues=continues)
        self._calls = OutputCalls()
        self._last_kind = ""  # of the last delta: text, reasoning, or neither
        self._paragraph = False  # an output item or summary part has begun since that delta
        self._has_text = False

    def feed(self, payload: bytes) -> Sequence[StreamItem]:
        if payload == b"[DONE]":  # some gateways add it
            return ()
        event = http_stream.decode_event(_decoder, payload)
        match event.type:
            case "response.output_text.delta":
                return self._add_text(event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._add_reasoning(event.delta)
            case "response.function_call_arguments.delta":
                return self._calls.extend(event.output_index, event.delta)
            case "response.refusal.delta":
                return self._refuse(event.delta)
            case "response.reasoning_summary_part.added":
                self._paragraph = True
                return ()
            case "response.output_item.added" if isinstance(event.item, dict):
                return self._begin(event.output_index, event.item)
            case "response.output_item.done" if isinstance(event.item, dict):
                return self._complete(event.output_index, event.item)
            case _:
                return self._feed_rare(event, payload)

    def _feed_rare(self, event: ResponsesEvent, payload: bytes) -> Sequence[StreamItem]:
        """Handle events about the whole response; unknown kinds and repetitions of deltas yield nothing."""
        if event.type == "error" or event.error is not None:
            raise failures.classify_stream_error(
                payload.decode(errors="replace"), request_id=self.response_id
            )
        response = event.response
        if response is None:
            return ()
        if isinstance(response.id, str) and response.id != self.response_id:
            self.response_id = response.id
            return (ResponseIdReceived(response.id), *self._handle_status(event.type, response))
        return self._handle_status(event.type, response)

    def _handle_status(self, kind: str, response: ResponseObject) -> Sequence[StreamItem]:
        match kind:
            case "response.completed" if response.status not in ("incomplete", "failed"):
                return self._finish(response)
            case "response.completed" | "response.incomplete" if response.status != "failed":
                return self._break_off(response)
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._fail(response)
            case _:
                return ()

    def end(self) -> Sequence[StreamItem]:
        if self._failure is not None:
            raise self._failure
        if not self.finished and not self.started:
            raise ProviderFailure("no_response", details="the stream ended without any content")
        if not self.finished:
            raise ProviderFailure("malformed_stream", details="the stream ended before the response did")
        if self._reason == "tool_calls" and self._calls.has_nameless:
            raise ProviderFailure("malformed_stream", details="a tool call has no name")
        return (ReplyFinished(self._reason, self.response_id),)

    # --- Content ---

    def _add_text(self, text: object) -> Sequence[StreamItem]:
        if not isinstance(text, str) or not text:
            return ()
        if self._last_kind != "text" or self._paragraph:
            text = self._start_kind("text", text)
            self._has_text = True
        return (TextDelta(text),) if self._filter.is_plain(text) else self._filter.feed(text)

    def _add_reasoning(self, text: object) -> Sequence[StreamItem]:
        if not isinstance(text, str) or not text:
            return ()
        return (ReasoningDelta(self._start_kind("reasoning", text)),)

    def _refuse(self, text: object) -> Sequence[StreamItem]:
        self._reason = "refused"
        if not isinstance(text, str) or not text:
            return ()
        return (*self._filter.finish(), TextDelta(self._start_kind("text", text)))

    def _start_kind(self, kind: str, text: str) -> str:
        """Separate two items or summary parts of the same kind as paragraphs."""
        is_new_paragraph = self._paragraph and self._last_kind == kind
        self._last_kind, self._paragraph, self.started = kind, False, True
        return PARAGRAPH_SEPARATOR + text if is_new_paragraph else text

    # --- Output items ---

    def _begin(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        """Begin an item. Even a reasoning item without text means that the model works."""
        self.started = self._paragraph = True
        rest = self._filter.finish()
        if item.get("type") != "function_call":
            return rest
        self._last_kind = ""
        return (*rest, *self._calls.begin(index, item))

    def _complete(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        self.started = True
        match item.get("type"):
            case "function_call":
                return self._calls.complete(index, item)
            case "reasoning" if item.get("encrypted_content"):
                return (self._sealed(item),)
            case _:
                return ()

    def _sealed(self, item: dict[str, JSON]) -> ReasoningReplay:
        thought = SealedReasoning(
            model=self._model,
            sealed=msgspec.json.encode(item).decode(),
            after_text=self._has_text,
            after_calls=self._calls.number,
        )
        return ReasoningReplay(msgspec.json.encode(thought).decode())

    # --- The end ---

    def _finish(self, response: ResponseObject) -> Sequence[StreamItem]:
        self.finished = True
        if self._reason == "stop" and self._calls.number:
            self._reason = "tool_calls"
        return (*self._filter.finish(), *_usage_items(response))

    def _break_off(self, response: ResponseObject) -> Sequence[StreamItem]:
        self.finished = True
        reason = get_incomplete_reason(response)
        if reason not in INCOMPLETE_REASONS:
            log.warning("incomplete_reason_unknown", provider="openai_responses")
        if self._reason != "refused":
            self._reason = INCOMPLETE_REASONS.get(reason, "length")
        return (*self._filter.finish(), *_usage_items(response))

    def _fail(self, response: ResponseObject) -> Sequence[StreamItem]:
        """Report usage before raising the failure, because it is billed."""
        failure = failures.classify_stream_error(encode_error(response), request_id=self.response_id)
        usage = _usage_items(response)
        if not usage:
            raise failure
        self.finished = True
        self._failure = failure
        return usage


def _usage_items(response: ResponseObject) -> Sequence[StreamItem]:
    usage = response.usage
    if not isinstance(usage, dict):
        return ()
    return (
        UsageReported(token_counts.parse_responses_usage(usage), token_counts.parse_reported_cost(usage)),
    )


@dataclass(slots=True)
class _OutputCall:
    number: int
    id: str = ""
    name: str = ""
    has_arguments: bool = False


class OutputCalls:
    """Number the calls of one reply by their output index, because proxies change ids between events."""

    def __init__(self) -> None:
        self._by_index: dict[int, _OutputCall] = {}

    @property
    def number(self) -> int:
        return len(self._by_index)

    @property
    def has_nameless(self) -> bool:
        return not all(call.name for call in self._by_index.values())

    def begin(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        call = _OutputCall(self.number)
        self._by_index[call.number if index is None else index] = call
        return _new_fragments(call, item)

    def extend(self, index: int | None, piece: object) -> Sequence[StreamItem]:
        call = self._find(index)
        # A call that was not announced arrives as a whole when it is done.
        if call is None or not isinstance(piece, str) or not piece:
            return ()
        call.has_arguments = True
        return (CallFragment(call.number, arguments=piece),)

    def complete(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        """Return what the finished item contains and no earlier event did."""
        call = self._find(index)
        return self.begin(index, item) if call is None else _new_fragments(call, item)

    def _find(self, index: int | None) -> _OutputCall | None:
        if index is not None:
            return self._by_index.get(index)
        return next(reversed(self._by_index.values()), None)


def _new_fragments(call: _OutputCall, item: dict[str, JSON]) -> Sequence[StreamItem]:
    call_id = "" if call.id else _string_or_empty(item.get("call_id")) or _string_or_empty(item.get("id"))
    name = "" if call.name else _string_or_empty(item.get("name"))
    arguments = "" if call.has_arguments else _string_or_empty(item.get("arguments"))
    call.id, call.name = call.id or call_id, call.name or name
    call.has_arguments = call.has_arguments or bool(arguments)
    if not (call_id or name or arguments):
        return ()
    return (CallFragment(call.number, call_id, name, arguments),)


def _string_or_empty(value: JSON) -> str:
    return value if isinstance(value, str) else ""
