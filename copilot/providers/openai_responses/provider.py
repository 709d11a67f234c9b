"""Stream replies of OpenAI's Responses API, storing nothing there: sent by the official SDK, decoded here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx2
import msgspec
import structlog

from config.core.json_values import JSON
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
from copilot.providers.openai_client import OpenAIClient
from copilot.providers.openai_responses import responses_wire
from copilot.providers.openai_responses.responses_wire import ResponseObject, ResponsesEvent, SealedReasoning
from copilot.providers.text_filter import TextFilter

log = structlog.get_logger(__name__)

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
        body = responses_wire.encode_request(request)

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
        event = responses_wire.decode_event(payload)
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
        reason = responses_wire.get_incomplete_reason(response)
        if reason not in INCOMPLETE_REASONS:
            log.warning("incomplete_reason_unknown", provider="openai_responses")
        if self._reason != "refused":
            self._reason = INCOMPLETE_REASONS.get(reason, "length")
        return (*self._filter.finish(), *_usage_items(response))

    def _fail(self, response: ResponseObject) -> Sequence[StreamItem]:
        """Report usage before raising the failure, because it is billed."""
        failure = failures.classify_stream_error(
            responses_wire.encode_error(response), request_id=self.response_id
        )
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
