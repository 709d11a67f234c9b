"""Stream Chat Completions of any compatible server: sent by the official SDK, decoded here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx2
import msgspec
import structlog

from copilot.providers import failures, http_stream, token_counts
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
from copilot.providers.openai_chat import chat_wire
from copilot.providers.openai_chat.chat_wire import ChatChunk, ChatDelta, ToolCallDelta
from copilot.providers.openai_client import OpenAIClient
from copilot.providers.text_filter import TextFilter

log = structlog.get_logger(__name__)

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
        body = chat_wire.encode_request(request, official=self._official)

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
        chunk = chat_wire.decode_chunk(payload)
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
        thoughts = (
            (ReasoningReplay(chat_wire.encode_replay("".join(self._thoughts))),) if self._thoughts else ()
        )
        return (*thoughts, ReplyFinished(self._reason, self.response_id))

    def _from_delta(self, delta: ChatDelta) -> list[StreamItem]:
        text, thought = chat_wire.split_content_parts(delta.content)
        thought = chat_wire.extract_reasoning(delta) or thought
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
        arguments = chat_wire.stringify_arguments(function.arguments) if function else ""
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
