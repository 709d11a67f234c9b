"""When a turn's conversation is shortened, how often, and what a failure of that means (A17.5, A17.7, A7.5)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from uuid import uuid4

from copilot.agent.guards import PriorRuns, TurnLimits
from copilot.agent.interfaces import Compactor, aclosing_iterator
from copilot.agent.model_requests import ModelRequester
from copilot.agent.outputs import (
    CompactionFailed,
    CompactionSucceeded,
    LoopAnswered,
    LoopFailed,
    LoopOutput,
    ModelCallEnded,
    NoticeAdded,
)
from copilot.agent.token_meters import ContextWindowMeter, is_window_full
from copilot.providers.base import ModelMessage
from copilot.realtime.events import ContextCompacting, ContextCompactionFailed

COMPACTION_FAILED = "compaction_failed"


class CompactionPolicy:
    """One turn's. After `play`, `succeeded` says whether the conversation is shorter now."""

    def __init__(
        self,
        compactor: Compactor,
        asker: ModelRequester,
        fullness: ContextWindowMeter,
        limits: TurnLimits,
        *,
        carried: PriorRuns,
    ) -> None:
        self.succeeded = False
        self.is_running = False
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
        return (
            self._can_begin()
            and not self._gave_up
            and is_window_full(window=window, used=self._fullness.used)
        )

    def can_force(self) -> bool:
        return (
            self._can_begin() and self._forced < self._limits.forced_compactions and self._asker.can_retry()
        )

    def _can_begin(self) -> bool:
        return self._begun < self._limits.compactions and not self._asker.retry_budget.is_exhausted

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self._compactor.unrecorded_call()

    async def compact(
        self, messages: list[ModelMessage], *, forced: bool, focus: str = ""
    ) -> AsyncIterator[LoopOutput]:
        """Shorten `messages` where they stand; every end of it is told."""
        self._begun += 1
        self._forced += forced
        self.succeeded, self.is_running = False, True
        window = self._asker.entry.context_window
        before = max(self._fullness.used, window) if forced else self._fullness.used
        for interrupted in self._asker.end_interrupted_text():
            yield interrupted
        try:
            yield ContextCompacting(tokens_before=before, window=window)
            task = self._asker.build_compaction_task(
                messages, tokens_before=before, forced=forced, focus=focus
            )
            async with aclosing_iterator(
                self._compactor.compact(task, self._asker.take_call_number)
            ) as parts:
                async for part in parts:
                    match part:
                        case CompactionSucceeded():
                            messages[:] = part.messages
                            self._fullness.record_compaction(part.tokens)
                            self.succeeded = True
                        case CompactionFailed():
                            self.reason = part.reason
                            yield ContextCompactionFailed(
                                reason=part.reason, tokens_before=before, window=window
                            )
                        case _:
                            yield part
        finally:
            self.is_running = False

    async def compact_on_request(
        self, messages: list[ModelMessage], focus: str
    ) -> AsyncGenerator[LoopOutput, None]:
        """All that a turn on request does (A17.6)."""
        async with aclosing_iterator(self.compact(messages, forced=False, focus=focus)) as parts:
            async for part in parts:
                yield part
        yield LoopAnswered() if self.succeeded else LoopFailed(code=COMPACTION_FAILED, details=self.reason)

    def give_up(self) -> NoticeAdded:
        """An automatic one failed: the turn goes on, and tries no other unless it must."""
        self._gave_up = True
        return NoticeAdded(row_id=uuid4(), code=COMPACTION_FAILED, details=self.reason)
