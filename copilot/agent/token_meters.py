"""Measure model calls and the context window: tokens, reported or estimated, and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import msgspec

from copilot.agent.outputs import ModelCallEnded, ModelCallEnding, ModelCallPurpose, ModelCallStarted
from copilot.chat.message_rows import MessageRow
from copilot.providers.base import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
)
from copilot.realtime.payloads import ContextUsage, Tokens

CHARACTERS_PER_TOKEN = 4  # an estimate; exact counts come from the provider
IMAGE_CHARACTERS = 6_400  # the equivalent of an average image, about 1,600 tokens


class ModelCallMeter:
    """Measure one model call, from just before its request to its end."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        call_id: UUID,
        number: int,
        now: Callable[[], float],
        purpose: ModelCallPurpose = "reply",
    ) -> None:
        self.id = call_id
        self.is_recorded = False  # the end of this call has been consumed
        self.name = ""  # the provider's id of the reply
        self.first_at: float | None = None
        self._request = request
        self._number = number
        self._purpose = purpose
        self._now = now
        self._began_at = now()
        self._last_at = self._began_at
        self._characters = 0
        self._usage: UsageReported | None = None
        self._announced = False
        self._ended: ModelCallEnded | None = None

    def start(self) -> ModelCallStarted:
        self._announced = True
        self._began_at = self._now()
        return ModelCallStarted(
            id=self.id, number=self._number, entry=self._request.entry, purpose=self._purpose
        )

    def count_characters(self, characters: int) -> None:
        self._last_at = self._now()
        if self.first_at is None:
            self.first_at = self._last_at
        self._characters += characters

    @property
    def characters(self) -> int:
        return self._characters

    def record_usage(self, usage: UsageReported) -> None:
        self._usage = usage

    @property
    def generation_seconds(self) -> float:
        return 0.0 if self.first_at is None else self._last_at - self.first_at

    def finish(
        self,
        *,
        aborted: bool,
        refused: bool = False,
        response_id: str = "",
        ending: ModelCallEnding = "",
        partial: bool = False,
    ) -> ModelCallEnded:
        tokens, estimated = (Tokens(), False) if refused else self._tokens(aborted)
        self._ended = ModelCallEnded(
            id=self.id,
            number=self._number,
            entry=self._request.entry,
            tokens=tokens,
            cost=self._usage.cost if self._usage else None,
            estimated=estimated,
            aborted=aborted,
            refused_before_work=refused,
            latency_ms=_to_milliseconds(self._now() - self._began_at),
            first_token_ms=None
            if self.first_at is None
            else _to_milliseconds(self.first_at - self._began_at),
            response_id=response_id or self.name,
            purpose=self._purpose,
            ending=ending,
            partial=partial,
        )
        return self._ended

    @property
    def tokens(self) -> Tokens:
        return self._ended.tokens if self._ended else Tokens()

    @property
    def estimated(self) -> bool:
        return self._ended is None or self._ended.estimated

    def unrecorded_end(self) -> ModelCallEnded | None:
        """Return the end of a call that nobody consumed, because the turn was cancelled."""
        if self.is_recorded or not self._announced:
            return None
        return self._ended or self.finish(aborted=True)

    def _tokens(self, aborted: bool) -> tuple[Tokens, bool]:
        """Return token counts and whether they are estimated; a broken stream may report too few."""
        output = estimate_tokens(self._characters)
        if self._usage is None:
            return Tokens(input=estimate_tokens(count_request_characters(self._request)), output=output), True
        reported = self._usage.tokens
        if aborted and output > reported.output:
            return replace(reported, output=output), True
        return reported, False


def add_token_counts(left: Tokens, right: Tokens) -> Tokens:
    return Tokens(
        input=left.input + right.input,
        cache_read=left.cache_read + right.cache_read,
        cache_write_5m=left.cache_write_5m + right.cache_write_5m,
        cache_write_1h=left.cache_write_1h + right.cache_write_1h,
        output=left.output + right.output,
        reasoning=left.reasoning + right.reasoning,
    )


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def count_request_characters(request: ModelRequest) -> int:
    tools = sum(
        len(tool.name) + len(tool.description) + len(msgspec.json.encode(dict(tool.parameters)))
        for tool in request.tools
    )
    return (
        len(request.system)
        + len(request.suffix)
        + tools
        + sum(count_message_characters(m) for m in request.messages)
    )


def count_message_characters(message: ModelMessage) -> int:
    match message:
        case UserMessage():
            return len(message.text) + IMAGE_CHARACTERS * len(message.images)
        case AssistantMessage():
            return len(message.text) + sum(len(msgspec.json.encode(c.arguments)) for c in message.calls)
        case ToolResultsMessage():
            return sum(
                len(result.content) + IMAGE_CHARACTERS * len(result.images) for result in message.results
            )


def _to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# --- The context window ---

LARGE_WINDOW_TOKENS = 200_000  # above it, a fixed reserve is enough
LARGE_WINDOW_RESERVE_TOKENS = 20_000
WINDOW_RESERVE_DIVISOR = 5  # the reserve of any other window is a fifth
ROW_KINDS_NOT_SENT = ("notice", "reasoning")


def is_window_full(*, window: int, used: int) -> bool:
    """Check whether too little space is left; a window of unknown size is never full."""
    if not window:
        return False
    reserve = (
        LARGE_WINDOW_RESERVE_TOKENS if window > LARGE_WINDOW_TOKENS else window // WINDOW_RESERVE_DIVISOR
    )
    return window - used <= reserve


def count_prompt_tokens(tokens: Tokens) -> int:
    return tokens.input + tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h


class ContextWindowMeter:
    """Track the size of the next prompt: the last one as the provider counted it, plus an estimate."""

    def __init__(self, tokens: int, *, estimated: bool = True) -> None:
        self._tokens = tokens
        self._characters = 0  # added since then
        self.estimated = estimated

    @property
    def used(self) -> int:
        return self._tokens + estimate_tokens(self._characters)

    def to_context_use(self, *, window: int, through: int) -> ContextUsage:
        estimated = self.estimated or self._characters > 0
        return ContextUsage(tokens=self.used, window=window, through=through, estimated=estimated)

    def add_characters(self, characters: int) -> None:
        self._characters += characters

    def record_reply(self, tokens: Tokens, *, estimated: bool) -> None:
        self._tokens = count_prompt_tokens(tokens) + tokens.output
        self._characters = 0
        self.estimated = estimated

    def record_compaction(self, tokens: int) -> None:
        self._tokens = tokens
        self._characters = 0
        self.estimated = True


def restore_window_meter(use: ContextUsage, rows: Sequence[MessageRow]) -> ContextWindowMeter | None:
    """Continue from the session's last turn; None if the model's context no longer contains its last row."""
    if not use.tokens:
        return None
    meter = ContextWindowMeter(use.tokens, estimated=use.estimated)
    for row in reversed(rows):
        if row.sequence is not None and row.sequence <= use.through:
            return meter if row.sequence == use.through else None
        if row.kind not in ROW_KINDS_NOT_SENT:
            meter.add_characters(
                len(row.server_context) + len(row.content) + len(str(row.data.get("arguments", "")))
            )
    return None
