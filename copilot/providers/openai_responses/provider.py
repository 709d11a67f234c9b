"""OpenAI's Responses API, nothing stored there: sent by the official SDK, decoded by us (A5.4)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx2
import msgspec

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

_log = logging.getLogger(__name__)

INCOMPLETE_REASONS: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_messages": "length",
    "content_filter": "refused",
}
PARAGRAPH_SEPARATOR = "\n\n"


class OpenAIResponsesProvider:
    """One server and credential."""

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

        async def opened() -> httpx2.Response:
            return await self._client.post("/responses", body)

        return http_stream.stream_reply(
            opened,
            ResponsesReplyDecoder(model=request.entry.model, continues=is_continuation(request.messages)),
            first_seconds=request.entry.first_token_timeout_seconds,
        )

    async def aclose(self) -> None:
        await self._client.aclose()


class ResponsesReplyDecoder:
    """Turns stream events into items; knows what has come so far, and nothing of the network."""

    def __init__(self, *, model: str = "", continues: bool = False) -> None:
        self.finished = False
        self.started = False
        self._model = model
        self._reason: FinishReason = "stop"
        self.response_id = ""
        self._failure: ProviderFailure | None = None
        self._cleaner = TextFilter(continues=continues)
        self._calls = OutputCalls()
        self._speaking = ""  # what the last delta was: text, reasoning, or neither
        self._paragraph = False  # an output item or summary part has begun since that delta
        self._said = False

    def feed(self, payload: bytes) -> Sequence[StreamItem]:
        if payload == b"[DONE]":  # gateways add it out of habit
            return ()
        event = responses_wire.decode_event(payload)
        match event.type:
            case "response.output_text.delta":
                return self._say(event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._think(event.delta)
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
        """What concerns the whole response; kinds to come, and those that repeat the deltas, say nothing."""
        if event.type == "error" or event.error is not None:
            raise failures.classify_stream_error(
                payload.decode(errors="replace"), request_id=self.response_id
            )
        response = event.response
        if response is None:
            return ()
        if isinstance(response.id, str) and response.id != self.response_id:
            self.response_id = response.id
            return (ResponseIdReceived(response.id), *self._follow(event.type, response))
        return self._follow(event.type, response)

    def _follow(self, kind: str, response: ResponseObject) -> Sequence[StreamItem]:
        """What has become of the whole response."""
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
            raise ProviderFailure("no_response", details="the stream ended without a word")
        if not self.finished:
            raise ProviderFailure("malformed_stream", details="the stream ended before the response did")
        if self._reason == "tool_calls" and self._calls.has_nameless:
            raise ProviderFailure("malformed_stream", details="a tool call came without a name")
        return (ReplyFinished(self._reason, self.response_id),)

    # --- what is said --------------------------------------------------------------------------------

    def _say(self, text: object) -> Sequence[StreamItem]:
        if not isinstance(text, str) or not text:
            return ()
        if self._speaking != "text" or self._paragraph:
            text = self._turn_to("text", text)
            self._said = True
        return (TextDelta(text),) if self._cleaner.is_plain(text) else self._cleaner.feed(text)

    def _think(self, text: object) -> Sequence[StreamItem]:
        if not isinstance(text, str) or not text:
            return ()
        return (ReasoningDelta(self._turn_to("reasoning", text)),)

    def _refuse(self, text: object) -> Sequence[StreamItem]:
        self._reason = "refused"
        if not isinstance(text, str) or not text:
            return ()
        return (*self._cleaner.finish(), TextDelta(self._turn_to("text", text)))

    def _turn_to(self, speaking: str, text: str) -> str:
        """Two items or summary parts of one kind in a row are paragraphs."""
        parted = self._paragraph and self._speaking == speaking
        self._speaking, self._paragraph, self.started = speaking, False, True
        return PARAGRAPH_SEPARATOR + text if parted else text

    # --- output items --------------------------------------------------------------------------------

    def _begin(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        """Also a reasoning item without a visible word: the model works, and the first wait is over."""
        self.started = self._paragraph = True
        rest = self._cleaner.finish()
        if item.get("type") != "function_call":
            return rest
        self._speaking = ""
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
            after_text=self._said,
            after_calls=self._calls.number,
        )
        return ReasoningReplay(msgspec.json.encode(thought).decode())

    # --- how it ends ---------------------------------------------------------------------------------

    def _finish(self, response: ResponseObject) -> Sequence[StreamItem]:
        self.finished = True
        if self._reason == "stop" and self._calls.number:
            self._reason = "tool_calls"
        return (*self._cleaner.finish(), *_usage_items(response))

    def _break_off(self, response: ResponseObject) -> Sequence[StreamItem]:
        self.finished = True
        reason = responses_wire.get_incomplete_reason(response)
        if reason not in INCOMPLETE_REASONS:
            _log.warning(
                "a provider's answer is incomplete for an unknown reason; it is taken for its length"
            )
        if self._reason != "refused":
            self._reason = INCOMPLETE_REASONS.get(reason, "length")
        return (*self._cleaner.finish(), *_usage_items(response))

    def _fail(self, response: ResponseObject) -> Sequence[StreamItem]:
        """Counts that come with a failure are billed, so that they go out before it is raised (A19.5)."""
        failure = failures.classify_stream_error(
            responses_wire.encode_error(response), request_id=self.response_id
        )
        counted = _usage_items(response)
        if not counted:
            raise failure
        self.finished = True
        self._failure = failure
        return counted


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
    argued: bool = False


class OutputCalls:
    """Numbers the calls of one reply. Items have a place in the output; their ids differ between events at proxies."""

    def __init__(self) -> None:
        self._by_place: dict[int, _OutputCall] = {}

    @property
    def number(self) -> int:
        return len(self._by_place)

    @property
    def has_nameless(self) -> bool:
        return not all(call.name for call in self._by_place.values())

    def begin(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        call = _OutputCall(self.number)
        self._by_place[call.number if index is None else index] = call
        return _new_fragments(call, item)

    def extend(self, index: int | None, piece: object) -> Sequence[StreamItem]:
        call = self._find(index)
        if (
            call is None or not isinstance(piece, str) or not piece
        ):  # an unannounced call comes whole when done
            return ()
        call.argued = True
        return (CallFragment(call.number, arguments=piece),)

    def complete(self, index: int | None, item: dict[str, JSON]) -> Sequence[StreamItem]:
        """What the finished item says and no event before it has said."""
        call = self._find(index)
        return self.begin(index, item) if call is None else _new_fragments(call, item)

    def _find(self, index: int | None) -> _OutputCall | None:
        if index is not None:
            return self._by_place.get(index)
        return next(reversed(self._by_place.values()), None)


def _new_fragments(call: _OutputCall, item: dict[str, JSON]) -> Sequence[StreamItem]:
    call_id = "" if call.id else _string_or_empty(item.get("call_id")) or _string_or_empty(item.get("id"))
    name = "" if call.name else _string_or_empty(item.get("name"))
    arguments = "" if call.argued else _string_or_empty(item.get("arguments"))
    call.id, call.name, call.argued = call.id or call_id, call.name or name, call.argued or bool(arguments)
    if not (call_id or name or arguments):
        return ()
    return (CallFragment(call.number, call_id, name, arguments),)


def _string_or_empty(value: JSON) -> str:
    return value if isinstance(value, str) else ""
