"""Decide when a turn's context is compacted and how often, and what a failed compaction means."""

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
    """Compact the context of one turn. After `compact`, `succeeded` tells whether the context is shorter."""

    def __init__(
        self,
        compactor: Compactor,
        requester: ModelRequester,
        window_meter: ContextWindowMeter,
        limits: TurnLimits,
        *,
        carried: PriorRuns,
    ) -> None:
        self.succeeded = False
        self.is_running = False
        self.reason = ""  # why the last compaction failed
        self._compactor = compactor
        self._requester = requester
        self._window_meter = window_meter
        self._limits = limits
        self._begun = carried.compactions
        self._forced = carried.forced_compactions
        self._gave_up = carried.gave_up_compacting

    def is_due(self) -> bool:
        window = self._requester.entry.context_window
        return (
            self._can_begin()
            and not self._gave_up
            and is_window_full(window=window, used=self._window_meter.used)
        )

    def can_force(self) -> bool:
        return (
            self._can_begin()
            and self._forced < self._limits.forced_compactions
            and self._requester.can_retry()
        )

    def _can_begin(self) -> bool:
        return self._begun < self._limits.compactions and not self._requester.retry_budget.is_exhausted

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self._compactor.unrecorded_call()

    async def compact(
        self, messages: list[ModelMessage], *, forced: bool, focus: str = ""
    ) -> AsyncIterator[LoopOutput]:
        """Shorten `messages` in place, and publish how it ended."""
        self._begun += 1
        self._forced += forced
        self.succeeded, self.is_running = False, True
        window = self._requester.entry.context_window
        before = max(self._window_meter.used, window) if forced else self._window_meter.used
        for event in self._requester.end_interrupted_text():
            yield event
        try:
            yield ContextCompacting(tokens_before=before, window=window)
            task = self._requester.build_compaction_task(
                messages, tokens_before=before, forced=forced, focus=focus
            )
            async with aclosing_iterator(
                self._compactor.compact(task, self._requester.take_call_number)
            ) as stream:
                async for output in stream:
                    match output:
                        case CompactionSucceeded():
                            messages[:] = output.messages
                            self._window_meter.record_compaction(output.tokens)
                            self.succeeded = True
                        case CompactionFailed():
                            self.reason = output.reason
                            yield ContextCompactionFailed(
                                reason=output.reason, tokens_before=before, window=window
                            )
                        case _:
                            yield output
        finally:
            self.is_running = False

    async def compact_on_request(
        self, messages: list[ModelMessage], focus: str
    ) -> AsyncGenerator[LoopOutput, None]:
        async with aclosing_iterator(self.compact(messages, forced=False, focus=focus)) as stream:
            async for output in stream:
                yield output
        yield LoopAnswered() if self.succeeded else LoopFailed(code=COMPACTION_FAILED, details=self.reason)

    def give_up(self) -> NoticeAdded:
        """Stop automatic compaction for this turn after a failure; an overflow can still force one."""
        self._gave_up = True
        return NoticeAdded(row_id=uuid4(), code=COMPACTION_FAILED, details=self.reason)
