"""What one model call takes: its tokens, reported or estimated, and its times (A19.1, A19.5, A19.9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import msgspec

from copilot.agent.parts import CallEnding, ModelCallEnded, ModelCallStarted, Purpose
from copilot.events import Tokens
from copilot.providers.base import (
    AssistantMessage,
    ModelMessage,
    Request,
    ToolGroup,
    UsageReported,
    UserMessage,
)

CHARACTERS_PER_TOKEN = 4  # an estimate; exact counts come from the provider
IMAGE_CHARACTERS = 6_400  # as many as one picture of usual size costs in tokens: about 1,600


class Meter:
    """One model call, from just before its request to its end."""

    def __init__(
        self,
        request: Request,
        *,
        call_id: UUID,
        number: int,
        now: Callable[[], float],
        purpose: Purpose = "reply",
    ) -> None:
        self.id = call_id
        self.settled = False  # somebody has taken the end of this call
        self.name = ""  # the provider's own for the reply
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

    def started(self) -> ModelCallStarted:
        self._announced = True
        self._began_at = self._now()
        return ModelCallStarted(
            id=self.id, number=self._number, entry=self._request.entry, purpose=self._purpose
        )

    def count(self, characters: int) -> None:
        """Something was generated just now."""
        self._last_at = self._now()
        if self.first_at is None:
            self.first_at = self._last_at
        self._characters += characters

    @property
    def characters(self) -> int:
        return self._characters

    def report(self, usage: UsageReported) -> None:
        self._usage = usage

    @property
    def generation_seconds(self) -> float:
        return 0.0 if self.first_at is None else self._last_at - self.first_at

    def ended(
        self,
        *,
        aborted: bool,
        refused: bool = False,
        response_id: str = "",
        ending: CallEnding = "",
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
            latency_ms=_milliseconds(self._now() - self._began_at),
            first_token_ms=None if self.first_at is None else _milliseconds(self.first_at - self._began_at),
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

    def left_open(self) -> ModelCallEnded | None:
        """The end of a call that nobody took yet, because the turn was cancelled (A19.5)."""
        if self.settled or not self._announced:
            return None
        return self._ended or self.ended(aborted=True)

    def _tokens(self, aborted: bool) -> tuple[Tokens, bool]:
        """Counts and whether we had to guess: of a broken stream the last report may lag behind what came."""
        output = estimate(self._characters)
        if self._usage is None:
            return Tokens(input=estimate(size(self._request)), output=output), True
        reported = self._usage.tokens
        if aborted and output > reported.output:
            return replace(reported, output=output), True
        return reported, False


def add(left: Tokens, right: Tokens) -> Tokens:
    return Tokens(
        input=left.input + right.input,
        cache_read=left.cache_read + right.cache_read,
        cache_write_5m=left.cache_write_5m + right.cache_write_5m,
        cache_write_1h=left.cache_write_1h + right.cache_write_1h,
        output=left.output + right.output,
        reasoning=left.reasoning + right.reasoning,
    )


def estimate(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def size(request: Request) -> int:
    """Characters that the model reads."""
    tools = sum(
        len(tool.name) + len(tool.description) + len(msgspec.json.encode(dict(tool.parameters)))
        for tool in request.tools
    )
    return len(request.system) + len(request.suffix) + tools + sum(length(m) for m in request.messages)


def length(message: ModelMessage) -> int:
    match message:
        case UserMessage():
            return len(message.text) + IMAGE_CHARACTERS * len(message.images)
        case AssistantMessage():
            return len(message.text) + sum(len(msgspec.json.encode(c.arguments)) for c in message.calls)
        case ToolGroup():
            return sum(
                len(result.content) + IMAGE_CHARACTERS * len(result.images) for result in message.results
            )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
