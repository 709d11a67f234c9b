"""When a turn's conversation is shortened, how often, and what a failure of that means (A17.5, A17.7, A7.5)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from uuid import uuid4

from copilot.agent.asking import Asker
from copilot.agent.carried import Carried
from copilot.agent.fullness import Fullness, is_due
from copilot.agent.guards import Limits
from copilot.agent.parts import (
    Answered,
    Compacted,
    CompactionFailed,
    Failed,
    ModelCallEnded,
    NoticeMade,
    Produced,
)
from copilot.agent.ports import Compactor, closed
from copilot.events import ContextCompacting, ContextCompactionFailed
from copilot.providers.base import ModelMessage

COMPACTION_FAILED = "compaction_failed"


class Shortening:
    """One turn's. After `play`, `succeeded` says whether the conversation is shorter now."""

    def __init__(
        self, compactor: Compactor, asker: Asker, fullness: Fullness, limits: Limits, *, carried: Carried
    ) -> None:
        self.succeeded = False
        self.under_way = False
        self.reason = ""  # why the last one failed
        self._compactor = compactor
        self._asker = asker
        self._fullness = fullness
        self._limits = limits
        self._begun = carried.compactions
        self._forced = carried.forced_compactions
        self._gave_up = carried.gave_up_compacting

    def is_due(self) -> bool:
        window = self._asker.entry.context_window
        return self._may_begin() and not self._gave_up and is_due(window=window, used=self._fullness.used)

    def may_force(self) -> bool:
        return (
            self._may_begin()
            and self._forced < self._limits.forced_compactions
            and self._asker.may_ask_again()
        )

    def _may_begin(self) -> bool:
        return self._begun < self._limits.compactions and not self._asker.retries.exhausted

    def open_call(self) -> ModelCallEnded | None:
        return self._compactor.open_call()

    async def play(
        self, messages: list[ModelMessage], *, forced: bool, focus: str = ""
    ) -> AsyncIterator[Produced]:
        """Shorten `messages` where they stand; every end of it is told."""
        self._begun += 1
        self._forced += forced
        self.succeeded, self.under_way = False, True
        window = self._asker.entry.context_window
        before = max(self._fullness.used, window) if forced else self._fullness.used
        for interrupted in self._asker.end_interrupted():
            yield interrupted
        try:
            yield ContextCompacting(tokens_before=before, window=window)
            task = self._asker.compaction(messages, tokens_before=before, forced=forced, focus=focus)
            async with closed(self._compactor.compact(task, self._asker.take_number)) as parts:
                async for part in parts:
                    match part:
                        case Compacted():
                            messages[:] = part.messages
                            self._fullness.shortened(part.tokens)
                            self.succeeded = True
                        case CompactionFailed():
                            self.reason = part.reason
                            yield ContextCompactionFailed(
                                reason=part.reason, tokens_before=before, window=window
                            )
                        case _:
                            yield part
        finally:
            self.under_way = False

    async def alone(self, messages: list[ModelMessage], focus: str) -> AsyncGenerator[Produced, None]:
        """All that a turn on request does (A17.6)."""
        async with closed(self.play(messages, forced=False, focus=focus)) as parts:
            async for part in parts:
                yield part
        yield Answered() if self.succeeded else Failed(code=COMPACTION_FAILED, details=self.reason)

    def give_up(self) -> NoticeMade:
        """An automatic one failed: the turn goes on, and tries no other unless it must."""
        self._gave_up = True
        return NoticeMade(row_id=uuid4(), code=COMPACTION_FAILED, details=self.reason)
