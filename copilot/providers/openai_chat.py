"""Stream Chat Completions of any compatible server: sent by the official SDK, decoded here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import httpx2
import msgspec
import openai
import structlog
from openai import AsyncOpenAI, AsyncStream, DefaultAioHttpClient

from config.core.json_values import JSON
from copilot.providers import failures, http_stream, prompt_cache, token_counts
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    FinishReason,
    ImagePart,
    ModelMessage,
    ModelRequest,
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
from copilot.providers.text_filter import TextFilter

log = structlog.get_logger(__name__)


STREAM_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
}


class OpenAIClient:
    """Hold one server and credential, whose connections all turns of the process share."""

    def __init__(self, *, credential: str, base_url: str, timeout: httpx2.Timeout) -> None:
        self._sdk = AsyncOpenAI(
            api_key=credential or "none",  # local servers need no key, but the SDK does
            base_url=base_url or None,
            max_retries=0,  # only the agent loop retries
            http_client=DefaultAioHttpClient(
                timeout=timeout,
                limits=http_stream.build_connection_limits(),
                verify=http_stream.load_ssl_context(),
            ),
        )

    async def post(self, path: str, body: bytes) -> httpx2.Response:
        """Return the raw response. The SDK's typed `create` takes 40 ms of CPU for 200 messages."""
        streamed: bool = True
        try:
            response = await self._sdk.post(
                path,
                cast_to=httpx2.Response,
                content=body,
                options={"headers": STREAM_HEADERS},
                stream=streamed,
                stream_cls=AsyncStream[object],
            )
        except openai.APIStatusError as error:
            answer = error.response
            raise failures.classify_response(answer.status_code, answer.text, answer.headers) from error
        except (openai.APIConnectionError, *http_stream.TRANSPORT_ERRORS) as error:
            raise http_stream.classify_failed_opening(error) from error
        assert isinstance(response, httpx2.Response)
        return response

    async def aclose(self) -> None:
        await self._sdk.close()


WireMessage = dict[str, JSON]

# --- The request ---


def encode_request(request: ModelRequest, *, official: bool) -> bytes:
    """Encode the body, with what never changes first and the messages last, for prefix caches."""
    entry = request.entry
    body: dict[str, JSON] = {"model": entry.model, "stream": True, "stream_options": {"include_usage": True}}
    if entry.max_output_tokens:
        name = "max_completion_tokens" if official else "max_tokens"
        body[name] = entry.max_output_tokens
    if request.effective_temperature is not None:
        body["temperature"] = request.effective_temperature
    body |= _parameter_fields(request)
    body |= _reasoning_fields(request)
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        body |= _tool_choice_fields(request)
    messages: list[WireMessage] = []
    if system := join_system_text(request):
        messages.append({"role": "system", "content": system})
    for message in merge_adjacent_messages(request.messages):
        messages += _encode_message(message, images=entry.supports_images, thoughts=entry.replays_reasoning)
    if prompt_cache.supports_cache_marks(entry):
        _mark_cache(request, body, messages)
    body["messages"] = list[JSON](messages)
    return msgspec.json.encode(body)


def _parameter_fields(request: ModelRequest) -> dict[str, JSON]:
    parameters = request.parameters
    fields: dict[str, JSON] = {}
    if parameters.top_p is not None:
        fields["top_p"] = parameters.top_p
    if parameters.stop:
        fields["stop"] = list(parameters.stop)
    if parameters.seed is not None:
        fields["seed"] = parameters.seed
    if (wanted := parameters.output_format) is not None:
        if wanted.schema is None:
            fields["response_format"] = {"type": "json_object"}
        else:
            schema: dict[str, JSON] = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _tool_choice_fields(request: ModelRequest) -> dict[str, JSON]:
    parameters = request.parameters
    fields: dict[str, JSON] = {}
    if parameters.tool_choice == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": parameters.forced_tool}}
    elif parameters.tool_choice != "auto":
        fields["tool_choice"] = parameters.tool_choice
    if parameters.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = parameters.parallel_tool_calls
    return fields


def _mark_cache(request: ModelRequest, body: dict[str, JSON], messages: list[WireMessage]) -> None:
    """Turn every text into a part, which can carry a mark, so that unmarked messages look the same."""
    for message in messages:
        if isinstance(text := message["content"], str) and text.strip():  # the API refuses blank parts
            message["content"] = [_text_part(text)]
    if isinstance(tools := body.get("tools"), list):
        prompt_cache.mark_last_tool(tools)
    marked = messages
    if messages and messages[0]["role"] == "system":
        marked = messages[1:]
        system = [_text_part(text) for text in (request.system, request.suffix) if text.strip()]
        prompt_cache.mark_first_block(system)
        messages[0]["content"] = system
    prompt_cache.mark_last_messages(message["content"] for message in reversed(marked))


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Send nothing unless the catalogue declares how to request reasoning."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    match request.entry.reasoning_style:
        case "effort":
            return {"reasoning_effort": get_request_effort(request)}
        case "gateway" if request.effort is not None:
            return {"reasoning": {"effort": request.effort}}
        case "gateway":
            return {"reasoning": {"max_tokens": request.thinking_tokens}}
        case _:
            return {}


def _encode_tool(tool: ToolSpecification) -> JSON:
    function: dict[str, JSON] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _encode_message(message: ModelMessage, *, images: bool, thoughts: bool) -> list[WireMessage]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _encode_content(message.text, message.images, images)}]
        case AssistantMessage():
            encoded: WireMessage = {"role": "assistant", "content": message.text or None}
            if message.calls:
                encoded["tool_calls"] = [_encode_call(call) for call in message.calls]
            if message.calls and thoughts:  # such servers require the field, even if it is empty
                encoded["reasoning_content"] = "".join(map(_decode_replay, message.replay))
            return [encoded]
        case ToolResultsMessage():
            return [
                {
                    "role": "tool",
                    "tool_call_id": r.call_id,
                    "content": _encode_content(r.content, r.images, images),
                }
                for r in message.results
            ]
        case unreachable:
            assert_never(unreachable)


def _encode_content(text: str, images: Sequence[ImagePart], supports_images: bool) -> JSON:
    """Use plain text unless there are images to send; then put the text first."""
    if not images or not supports_images:
        return text
    parts: list[JSON] = [_text_part(text)] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": image.data_url}} for image in images]


def _text_part(text: str) -> JSON:
    return {"type": "text", "text": text}


def _encode_call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {"id": call.call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


# --- Replayed reasoning ---


class _ReasoningText(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_chat"):
    text: str


_replay_decoder = msgspec.json.Decoder(_ReasoningText)


def encode_replay(text: str) -> str:
    return msgspec.json.encode(_ReasoningText(text)).decode()


def _decode_replay(data: str) -> str:
    """Decode reasoning of this wire format; that of others is left out."""
    try:
        return _replay_decoder.decode(data).text
    except msgspec.DecodeError:
        return ""


# --- The chunks ---
# Fields that servers fill freely are `object`, so that a surprise in one does not break the whole chunk.


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: object = None


class ToolCallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    reasoning_details: object = None
    refusal: object = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(msgspec.Struct):
    delta: ChatDelta | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct):
    id: object = None
    choices: list[ChatChoice] | None = None
    usage: object = None
    error: object = None


_decoder = msgspec.json.Decoder(ChatChunk)


def decode_chunk(payload: bytes) -> ChatChunk:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return _decode_leniently(payload)


def _decode_leniently(payload: bytes) -> ChatChunk:
    """Accept NaN, which Python servers write although it is no JSON; anything worse is a broken stream."""
    try:
        return msgspec.convert(json.loads(payload), ChatChunk)
    except (ValueError, RecursionError) as error:  # undecodable, or decoded into another shape
        raise ProviderFailure(
            "malformed_stream", details="a chunk of the stream could not be parsed"
        ) from error


def stringify_arguments(arguments: object) -> str:
    """Encode arguments that some servers send as an object instead of text."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def extract_reasoning(delta: ChatDelta) -> str:
    for field in (delta.reasoning, delta.reasoning_content):
        if isinstance(field, str):
            if field:
                return field
        elif field is not None:
            log.warning("reasoning_not_text", field_type=type(field).__name__)
    return _details_text(delta.reasoning_details) if delta.reasoning_details else ""


def _details_text(details: object) -> str:
    if not isinstance(details, list):
        log.warning("reasoning_details_not_list", field_type=type(details).__name__)
        return ""
    return "".join(_detail_text(entry) for entry in details)


def _detail_text(entry: object) -> str:
    """Prefer text over summary; encrypted and unknown types show nothing."""
    if not isinstance(entry, dict):
        return ""
    kind = entry.get("type")
    if kind is not None and kind not in ("reasoning.text", "reasoning.summary", "text", "summary"):
        return ""
    found = (entry.get("text"), entry.get("summary"))
    return next((text for text in found if isinstance(text, str) and text), "")


def split_content_parts(content: object) -> tuple[str, str]:
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    parts = [part for part in content if isinstance(part, dict)]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    thought = [
        split_content_parts(part.get("thinking"))[0] for part in parts if part.get("type") == "thinking"
    ]
    return "".join(text for text in texts if isinstance(text, str)), "".join(thought)


FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
    "refusal": "refused",
    "model_context_window_exceeded": "overflow",
}


class OpenAIChatProvider:
    def __init__(
        self,
        *,
        credential: str,
        base_url: str = "",
        idle_seconds: float = http_stream.IDLE_TIMEOUT_SECONDS,
        connect_seconds: float = http_stream.CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self._official = not base_url
        self._client = OpenAIClient(
            credential=credential,
            base_url=base_url,
            timeout=http_stream.build_timeout(idle_seconds, connect_seconds),
        )

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        body = encode_request(request, official=self._official)

        async def open_response() -> httpx2.Response:
            return await self._client.post("/chat/completions", body)

        return http_stream.stream_reply(
            open_response,
            ChatReplyDecoder(
                continues=is_continuation(request.messages), replays_reasoning=request.entry.replays_reasoning
            ),
            first_seconds=request.entry.first_token_timeout_seconds,
        )

    async def aclose(self) -> None:
        await self._client.aclose()


class ChatReplyDecoder:
    """Turn chunks into items, without any knowledge of the network."""

    def __init__(self, *, continues: bool = False, replays_reasoning: bool = False) -> None:
        self.finished = False
        self._thoughts: list[str] | None = [] if replays_reasoning else None  # collected to be sent back
        self._reason: FinishReason = "stop"
        self.response_id = ""
        self.started = False
        self._filter = TextFilter(continues=continues)
        self._calls = ToolCallNumbers()

    def feed(self, payload: bytes) -> Sequence[StreamItem]:
        if payload == b"[DONE]":
            return ()
        chunk = decode_chunk(payload)
        choices = chunk.choices
        if choices and choices[0].finish_reason is None and chunk.usage is None:
            delta = choices[0].delta
            if delta is not None and _is_only_text(delta):
                text = delta.content
                if isinstance(text, str) and text and self._filter.is_plain(text):
                    self.started = True
                    return (TextDelta(text),)
        return self._feed_any(chunk, payload)

    def _feed_any(self, chunk: ChatChunk, payload: bytes) -> list[StreamItem]:
        if chunk.error is not None:
            raise failures.classify_stream_error(
                payload.decode(errors="replace"), request_id=self.response_id
            )
        new_id = isinstance(chunk.id, str) and not self.response_id and chunk.id
        items: list[StreamItem] = []
        for choice in (chunk.choices or ())[:1]:
            if choice.delta is not None:
                items += self._from_delta(choice.delta)
            if choice.finish_reason:
                items += self._finish(choice.finish_reason)
        self.started = self.started or bool(items)
        if new_id:
            self.response_id = new_id
            items.insert(0, ResponseIdReceived(new_id))
        if isinstance(chunk.usage, dict):
            items.append(
                UsageReported(
                    token_counts.parse_chat_usage(chunk.usage), token_counts.parse_reported_cost(chunk.usage)
                )
            )
        return items

    def end(self) -> Sequence[StreamItem]:
        if not self.finished and not self.started:
            raise ProviderFailure("no_response", details="the stream ended without any content")
        if not self.finished:
            raise ProviderFailure("malformed_stream", details="the stream ended without a finish reason")
        if self._reason == "tool_calls" and self._calls.has_nameless:
            raise ProviderFailure("malformed_stream", details="a tool call has no name")
        thoughts = (ReasoningReplay(encode_replay("".join(self._thoughts))),) if self._thoughts else ()
        return (*thoughts, ReplyFinished(self._reason, self.response_id))

    def _from_delta(self, delta: ChatDelta) -> list[StreamItem]:
        text, thought = split_content_parts(delta.content)
        thought = extract_reasoning(delta) or thought
        items: list[StreamItem] = [ReasoningDelta(thought)] if thought else []
        if thought and self._thoughts is not None:
            self._thoughts.append(thought)
        if text:
            items += self._filter.feed(text)
        if isinstance(delta.refusal, str) and delta.refusal:
            self._reason = "refused"
            items.append(TextDelta(delta.refusal))
        if delta.tool_calls:
            items += self._filter.finish()
            items += [self._calls.number_fragment(piece) for piece in delta.tool_calls]
        return items

    def _finish(self, reason: str) -> list[StreamItem]:
        if reason == "error":
            raise ProviderFailure("overloaded", details="the provider ended its stream with an error")
        if reason not in FINISH_REASONS:
            log.warning("finish_reason_unknown", provider="openai_chat")
        if self._reason != "refused":
            self._reason = FINISH_REASONS.get(reason, "stop")
        if self._reason == "stop" and self._calls.has_calls:
            self._reason = "tool_calls"
        self.finished = True
        return list(self._filter.finish())


def _is_only_text(delta: ChatDelta) -> bool:
    return not (
        delta.tool_calls
        or delta.reasoning
        or delta.reasoning_content
        or delta.reasoning_details
        or delta.refusal
    )


@dataclass(slots=True)
class _SeenCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class ToolCallNumbers:
    """Number fragments whose server leaves out the index, and drop repeated names."""

    def __init__(self) -> None:
        self._seen: list[_SeenCall] = []
        self._by_number: dict[int, _SeenCall] = {}
        self._last = 0

    @property
    def has_calls(self) -> bool:
        return bool(self._seen)

    @property
    def has_nameless(self) -> bool:
        return not all(call.name for call in self._seen)

    def number_fragment(self, piece: ToolCallDelta) -> CallFragment:
        function = piece.function
        name = (function.name or "") if function else ""
        arguments = stringify_arguments(function.arguments) if function else ""
        number = self._last = self._number(piece, name)
        call = self._by_number.get(number)
        if call is None or (piece.id and call.id and piece.id != call.id):  # a new id on a used number
            call = self._by_number[number] = _SeenCall()
            self._seen.append(call)
        new_name = "" if name == call.name else name
        call.id = call.id or piece.id or ""
        call.name += new_name
        call.arguments += arguments
        return CallFragment(number, piece.id or "", new_name, arguments)

    def _number(self, piece: ToolCallDelta, name: str) -> int:
        if piece.index is not None:
            return piece.index
        free = len(self._by_number)
        if piece.id:
            return next((n for n, call in self._by_number.items() if call.id == piece.id), free)
        last = self._by_number.get(self._last)
        return free if last is None or (name and _is_complete_json(last.arguments)) else self._last


def _is_complete_json(arguments: str) -> bool:
    """Check whether a call's arguments are complete, so that another name begins another call."""
    try:
        msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True
