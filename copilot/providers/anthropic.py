"""Stream replies of Anthropic's Messages API: sent by the official SDK, decoded here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import assert_never

import anthropic
import httpx2
import msgspec
import structlog
from anthropic import AsyncAnthropic, AsyncStream, DefaultAioHttpClient

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
    ToolResult,
    ToolResultsMessage,
    ToolSpecification,
    UsageReported,
    UserMessage,
    get_request_effort,
    is_continuation,
    merge_adjacent_messages,
)
from copilot.providers.text_filter import TextFilter
from copilot.realtime.payloads import Tokens

log = structlog.get_logger(__name__)


ContentBlock = dict[str, JSON]

DEFAULT_MAX_TOKENS = 8_192  # the field is mandatory; every model in service allows this much
MIN_THINKING_BUDGET_TOKENS = 1_024  # the API refuses less
CONTINUE_NOTE = (
    "<system_note>Your last message was cut off. Continue exactly after its last character.</system_note>"
)
_not_in_ids = re.compile(r"[^A-Za-z0-9_-]")


# --- The request ---


def build_request_body(request: ModelRequest) -> dict[str, JSON]:
    """Put what never changes first and the messages last, with cache marks in between."""
    thinking, max_tokens = _thinking_fields(request)
    body: dict[str, JSON] = {"model": request.entry.model, "max_tokens": max_tokens, "stream": True}
    if request.effective_temperature is not None and not thinking:
        body["temperature"] = request.effective_temperature
    if request.parameters.top_p is not None and not thinking:
        body["top_p"] = request.parameters.top_p
    if request.parameters.stop:
        body["stop_sequences"] = list(request.parameters.stop)
    body |= thinking
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        body |= _tool_choice_fields(request, thinks=bool(thinking))
    if system := [text for text in (request.system, request.suffix) if text.strip()]:
        body["system"] = [{"type": "text", "text": text} for text in system]
    body["messages"] = _encode_messages(request, replayed=bool(thinking))
    if prompt_cache.supports_cache_marks(request.entry):
        _mark_cache(body)
    return body


def _tool_choice_fields(request: ModelRequest, *, thinks: bool) -> dict[str, JSON]:
    """Leave the choice to a model that thinks: the API refuses to force a call together with thinking."""
    parameters = request.parameters
    choice: dict[str, JSON] = {"type": "auto"}
    match parameters.tool_choice:
        case "none":
            return {"tool_choice": {"type": "none"}}
        case "required" if not thinks:
            choice = {"type": "any"}
        case "tool" if not thinks:
            choice = {"type": "tool", "name": parameters.forced_tool}
        case _:
            pass
    if parameters.parallel_tool_calls is False:
        choice["disable_parallel_tool_use"] = True
    return {} if choice == {"type": "auto"} else {"tool_choice": choice}


def _mark_cache(body: dict[str, JSON]) -> None:
    for name, mark in (("tools", prompt_cache.mark_last_tool), ("system", prompt_cache.mark_first_block)):
        if isinstance(parts := body.get(name), list):
            mark(parts)
    if isinstance(messages := body["messages"], list):
        prompt_cache.mark_last_messages(m["content"] for m in reversed(messages) if isinstance(m, dict))


def _thinking_fields(request: ModelRequest) -> tuple[dict[str, JSON], int]:
    entry = request.entry
    limit = entry.max_output_tokens or DEFAULT_MAX_TOKENS
    if not request.thinking_tokens or not entry.can_reason or _lacks_loop_reasoning(request):
        return {}, limit
    match entry.reasoning_style:
        case "adaptive":
            effort: ContentBlock = {"effort": get_request_effort(request)}
            return {"thinking": {"type": "adaptive"}, "output_config": effort}, limit
        case "budget":
            budget = max(MIN_THINKING_BUDGET_TOKENS, request.thinking_tokens)
            if not entry.max_output_tokens:
                limit = budget + DEFAULT_MAX_TOKENS
            elif budget >= limit:
                budget = limit // 2  # the other half is for the answer
            if budget < MIN_THINKING_BUDGET_TOKENS:
                return {}, limit
            return {"thinking": {"type": "enabled", "budget_tokens": budget}}, limit
        case _:
            return {}, limit


def _lacks_loop_reasoning(request: ModelRequest) -> bool:
    """Check for a tool loop without its reasoning, which the API refuses with a thinking budget.

    One remaining thinking block is enough, because a model need not think between two calls.
    """
    called = False
    for message in reversed(request.messages):
        if isinstance(message, AssistantMessage):
            if not message.calls or message.replay:
                return False
            called = True
        if isinstance(message, UserMessage) and not message.text.lstrip().startswith("<system_note"):
            break
    return called and request.entry.reasoning_style == "budget"


def _encode_messages(request: ModelRequest, *, replayed: bool) -> list[JSON]:
    messages: list[JSON] = []
    last_role, last_content = "", list[JSON]()
    for message in merge_adjacent_messages(_sanitize_call_ids(m) for m in request.messages):
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        content = _encode_content(message, images=request.entry.supports_images, replayed=replayed)
        if not content:
            continue
        if role == last_role:  # tool results first, then the user's text
            last_content += content
            continue
        last_role, last_content = role, content
        messages.append({"role": role, "content": last_content})
    if last_role == "assistant":  # a trailing answer would be a prefill, which newer models refuse
        messages.append({"role": "user", "content": [_text_block(CONTINUE_NOTE)]})
    return messages


def _sanitize_call_ids(message: ModelMessage) -> ModelMessage:
    """Replace characters in other vendors' call ids that this API refuses."""
    match message:
        case AssistantMessage(calls=calls) if calls:
            return replace(
                message, calls=tuple(replace(c, call_id=_sanitize_call_id(c.call_id)) for c in calls)
            )
        case ToolResultsMessage(results=results):
            return replace(
                message, results=tuple(replace(r, call_id=_sanitize_call_id(r.call_id)) for r in results)
            )
        case _:
            return message


def _sanitize_call_id(call_id: str) -> str:
    return _not_in_ids.sub("_", call_id)


def _encode_content(message: ModelMessage, *, images: bool, replayed: bool) -> list[JSON]:
    match message:
        case UserMessage():
            return [
                *_text_blocks(message.text),
                *(_encode_image(image) for image in message.images if images),
            ]
        case AssistantMessage():
            thoughts = (
                [block for data in message.replay if (block := _decode_replay(data))] if replayed else []
            )
            return [*thoughts, *_text_blocks(message.text), *(_encode_call(call) for call in message.calls)]
        case ToolResultsMessage():
            return [_encode_result(result, images=images) for result in message.results]
        case unreachable:
            assert_never(unreachable)


def _text_blocks(text: str) -> list[JSON]:
    """Leave out blank text blocks, which the API refuses."""
    return [_text_block(text)] if text.strip() else []


def _text_block(text: str) -> JSON:
    return {"type": "text", "text": text}


def _encode_image(image: ImagePart) -> JSON:
    source: ContentBlock = {"type": "base64", "media_type": image.mime, "data": image.base64}
    return {"type": "image", "source": source}


def _encode_call(call: ToolCall) -> JSON:
    return {"type": "tool_use", "id": call.call_id, "name": call.tool, "input": call.arguments or {}}


def _encode_result(result: ToolResult, *, images: bool) -> JSON:
    content: JSON = result.content
    if result.images and images:
        content = [*_text_blocks(result.content), *(_encode_image(image) for image in result.images)]
    block: ContentBlock = {"type": "tool_result", "tool_use_id": result.call_id, "content": content}
    return block if result.success else block | {"is_error": True}


def _encode_tool(tool: ToolSpecification) -> JSON:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def _decode_replay(data: str) -> ContentBlock | None:
    """Decode a thinking block of this provider; replay data of others is left out."""
    try:
        block = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    known = isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
    return block if known else None


# --- The stream ---


class MessagesDelta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class MessageStart(msgspec.Struct):
    id: str = ""
    usage: object = None


class MessagesEvent(msgspec.Struct):
    type: str
    delta: MessagesDelta | None = None
    content_block: object = None
    message: MessageStart | None = None
    usage: object = None


_decoder = msgspec.json.Decoder(MessagesEvent)


MAX_PAUSES = 3  # pause_turn: the server wants its unfinished reply back to continue it
FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
    "model_context_window_exceeded": "overflow",
}
STREAM_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
}


class AnthropicProvider:
    """Hold one credential, whose connections all turns of the process share."""

    def __init__(
        self,
        *,
        credential: str,
        base_url: str = "",
        idle_seconds: float = http_stream.IDLE_TIMEOUT_SECONDS,
        connect_seconds: float = http_stream.CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self._client = AsyncAnthropic(
            api_key=credential or "none",
            base_url=base_url or None,
            max_retries=0,  # only the agent loop retries
            http_client=DefaultAioHttpClient(
                timeout=http_stream.build_timeout(idle_seconds, connect_seconds),
                limits=http_stream.build_connection_limits(),
                verify=http_stream.load_ssl_context(),
            ),
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        body = current_body = build_request_body(request)
        reply = MessagesReplyDecoder(continues=is_continuation(request.messages))
        first_seconds = request.entry.first_token_timeout_seconds
        while True:
            open_response = partial(self._post, current_body)
            async with aclosing(
                http_stream.stream_reply(open_response, reply, first_seconds=first_seconds)
            ) as items:
                async for item in items:
                    yield item
            if not reply.paused:
                return
            current_body = _append_paused_reply(body, reply.resume())

    async def aclose(self) -> None:
        await self._client.close()

    async def _post(self, body: dict[str, JSON]) -> httpx2.Response:
        """Return the raw response; the SDK's typed `create` would walk every message and every event."""
        streamed: bool = True
        try:
            response = await self._client.post(
                "/v1/messages",
                cast_to=httpx2.Response,
                content=msgspec.json.encode(body),
                options={"headers": STREAM_HEADERS},
                stream=streamed,
                stream_cls=AsyncStream[object],
            )
        except anthropic.APIStatusError as error:
            answer = error.response
            raise failures.classify_response(answer.status_code, answer.text, answer.headers) from error
        except (anthropic.APIConnectionError, *http_stream.TRANSPORT_ERRORS) as error:
            raise http_stream.classify_failed_opening(error) from error
        assert isinstance(response, httpx2.Response)
        return response


def _append_paused_reply(body: dict[str, JSON], blocks: list[ContentBlock]) -> dict[str, JSON]:
    messages = body["messages"]
    assert isinstance(messages, list)
    reply: ContentBlock = {"role": "assistant", "content": list[JSON](blocks)}
    return body | {"messages": [*messages, reply]}


@dataclass(slots=True)
class _OpenBlock:
    """A content block while it streams; `raw` is sent back if the reply pauses."""

    raw: ContentBlock
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    call_number: int | None = None


class MessagesReplyDecoder:
    """Turn stream events into items, without any knowledge of the network."""

    def __init__(self, *, continues: bool = False) -> None:
        self.finished = False
        self.paused = False
        self._pauses = 0
        self._reason: FinishReason = "stop"
        self.response_id = ""
        self.started = False
        self._filter = TextFilter(continues=continues)
        self._block: _OpenBlock | None = None
        self._blocks: list[ContentBlock] = []
        self._calls = 0
        self._before = Tokens()  # of requests before a pause
        self._tokens = Tokens()

    def feed(self, payload: bytes) -> Sequence[StreamItem]:
        event = http_stream.decode_event(_decoder, payload)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                return self._extend(event.delta)
            case "content_block_start":
                return self._start(event.content_block)
            case "content_block_stop":
                return self._stop()
            case "message_start" if event.message is not None:
                self.response_id = event.message.id
                return (ResponseIdReceived(event.message.id), *self._usage(event.message.usage))
            case "message_delta":
                return self._finish(event)
            case "error":
                raise failures.classify_stream_error(
                    payload.decode(errors="replace"), request_id=self.response_id
                )
            case _:  # message_stop, pings and future kinds
                return ()

    def end(self) -> Sequence[StreamItem]:
        if not self.finished and not self.started:
            raise ProviderFailure("no_response", details="the stream ended without any content")
        if not self.finished:
            raise ProviderFailure("malformed_stream", details="the stream ended without a stop reason")
        return () if self.paused else (ReplyFinished(self._reason, self.response_id),)

    def resume(self) -> list[ContentBlock]:
        """Return the reply so far, to be sent back; the next stream continues it."""
        self.finished = self.paused = False
        self._pauses += 1
        self._before, self._tokens = self._total(), Tokens()
        return self._blocks

    def _start(self, block: object) -> Sequence[StreamItem]:
        raw: ContentBlock = block if isinstance(block, dict) else {}
        self._block = _OpenBlock(raw)
        match raw.get("type"):
            case "text" if raw.get("text"):
                return self._add_text(str(raw["text"]))
            case "redacted_thinking":
                self.started = True
                return (ReasoningReplay(msgspec.json.encode(raw).decode()),)
            case "tool_use":
                return self._call(self._block)
            case _:
                return ()

    def _call(self, block: _OpenBlock) -> Sequence[StreamItem]:
        name = str(block.raw.get("name") or "")
        if not name:
            raise ProviderFailure("malformed_stream", details="a tool call has no name")
        block.call_number = self._calls
        self._calls += 1
        self.started = True
        return (
            *self._filter.finish(),
            CallFragment(block.call_number, str(block.raw.get("id") or ""), name),
        )

    def _extend(self, delta: MessagesDelta) -> Sequence[StreamItem]:
        block = self._block
        if block is None:
            return ()
        match delta.type:
            case "text_delta":
                return self._add_text(delta.text)
            case "thinking_delta" if delta.thinking:
                block.pieces.append(delta.thinking)
                self.started = True
                return (ReasoningDelta(delta.thinking),)
            case "signature_delta":
                block.signature += delta.signature
            case "input_json_delta" if delta.partial_json:
                block.pieces.append(delta.partial_json)
                if block.call_number is not None:
                    return (CallFragment(block.call_number, arguments=delta.partial_json),)
        return ()

    def _add_text(self, text: str) -> Sequence[StreamItem]:
        if not text:
            return ()
        if self._block is not None:
            self._block.pieces.append(text)
        self.started = True
        return (TextDelta(text),) if self._filter.is_plain(text) else self._filter.feed(text)

    def _stop(self) -> Sequence[StreamItem]:
        block, self._block = self._block, None
        if block is None:
            return ()
        complete = _complete_block(block)
        self._blocks.append(complete)
        if complete.get("type") == "thinking" and block.signature:
            return (ReasoningReplay(msgspec.json.encode(complete).decode()),)
        return ()

    def _usage(self, usage: object) -> Sequence[StreamItem]:
        if not isinstance(usage, dict):
            return ()
        self._tokens = token_counts.parse_messages_usage(usage, self._tokens)
        return (UsageReported(self._total(), token_counts.parse_reported_cost(usage)),)

    def _total(self) -> Tokens:
        return token_counts.add_tokens(self._before, self._tokens)

    def _finish(self, event: MessagesEvent) -> Sequence[StreamItem]:
        reason = event.delta.stop_reason if event.delta else None
        if reason:
            if reason not in FINISH_REASONS:
                log.warning("finish_reason_unknown", provider="anthropic")
            self.finished = True
            self._reason = FINISH_REASONS.get(reason, "stop")
            self.paused = reason == "pause_turn" and self._pauses < MAX_PAUSES
        rest = () if self.paused else self._filter.finish()
        return (*rest, *self._usage(event.usage))


def _complete_block(block: _OpenBlock) -> ContentBlock:
    text = "".join(block.pieces)
    match block.raw.get("type"):
        case "text":
            return {"type": "text", "text": text}
        case "thinking":
            return {"type": "thinking", "thinking": text, "signature": block.signature}
        case "tool_use" | "server_tool_use":
            return block.raw | {"input": _parse_input(text)}
        case _:
            return block.raw


def _parse_input(text: str) -> JSON:
    try:
        value: JSON = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return value
