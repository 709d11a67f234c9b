"""Stream replies of Anthropic's Messages API: sent by the official SDK, decoded here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import anthropic
import httpx2
import msgspec
import structlog
from anthropic import AsyncAnthropic, AsyncStream, DefaultAioHttpClient

from config.core.json_values import JSON
from copilot.providers import failures, http_stream, token_counts
from copilot.providers.anthropic import messages_wire
from copilot.providers.anthropic.messages_wire import ContentBlock, MessagesDelta, MessagesEvent
from copilot.providers.base import (
    CallFragment,
    FinishReason,
    ModelRequest,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    ResponseIdReceived,
    StreamItem,
    TextDelta,
    UsageReported,
    is_continuation,
)
from copilot.providers.text_filter import TextFilter
from copilot.realtime.payloads import Tokens

log = structlog.get_logger(__name__)

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
        body = current_body = messages_wire.build_request_body(request)
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
        event = messages_wire.decode_event(payload)
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
