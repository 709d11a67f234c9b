"""Decide when a turn's context is compacted and how often, and what a failed compaction means."""

from __future__ import annotations

from uuid import uuid4

from copilot.agent.guards import PriorRuns, TurnLimits
from copilot.agent.interfaces import LoopPorts
from copilot.agent.model_client import ModelClient
from copilot.agent.outputs import (
    CompactionFailed,
    LoopAnswered,
    LoopEnding,
    LoopFailed,
    ModelCallEnded,
    NoticeAdded,
)
from copilot.agent.token_meters import is_window_full
from copilot.providers.base import ModelMessage
from copilot.realtime.events import ContextCompacting, ContextCompactionFailed

COMPACTION_FAILED = "compaction_failed"


class CompactionPolicy:
    """Compact the context of one turn. After `compact`, `succeeded` tells whether the context is shorter."""

    def __init__(
        self,
        ports: LoopPorts,
        client: ModelClient,
        limits: TurnLimits,
        *,
        prior_runs: PriorRuns,
    ) -> None:
        self.succeeded = False
        self.is_running = False
        self.reason = ""  # why the last compaction failed
        self._compactor = ports.compactor
        self._output = ports.output
        self._client = client
        self._limits = limits
        self._begun = prior_runs.compactions
        self._forced = prior_runs.forced_compactions
        self._gave_up = prior_runs.gave_up_compacting

    def is_due(self) -> bool:
        window = self._client.entry.context_window
        return (
            self._can_begin()
            and not self._gave_up
            and is_window_full(window=window, used=self._client.window_meter.used)
        )

    def can_force(self) -> bool:
        return (
            self._can_begin() and self._forced < self._limits.forced_compactions and self._client.can_retry()
        )

    def _can_begin(self) -> bool:
        return self._begun < self._limits.compactions and not self._client.retry_budget.is_exhausted

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self._compactor.unrecorded_call()

    async def compact(self, messages: list[ModelMessage], *, forced: bool, focus: str = "") -> None:
        """Shorten `messages` in place, and publish how it ended."""
        self._begun += 1
        self._forced += forced
        self.succeeded, self.is_running = False, True
        client = self._client
        window = client.entry.context_window
        before = max(client.window_meter.used, window) if forced else client.window_meter.used
        await client.end_interrupted_text()
        try:
            await self._output.emit(ContextCompacting(tokens_before=before, window=window))
            task = client.build_compaction_task(messages, tokens_before=before, forced=forced, focus=focus)
            result = await self._compactor.compact(task, client.take_call_number, self._output)
            if isinstance(result, CompactionFailed):
                self.reason = result.reason
                await self._output.emit(
                    ContextCompactionFailed(reason=result.reason, tokens_before=before, window=window)
                )
            else:
                messages[:] = result.messages
                client.window_meter.record_compaction(result.tokens)
                self.succeeded = True
        finally:
            self.is_running = False

    async def compact_on_request(self, messages: list[ModelMessage], focus: str) -> LoopEnding:
        await self.compact(messages, forced=False, focus=focus)
        if self.succeeded:
            return LoopAnswered()
        return LoopFailed(code=COMPACTION_FAILED, details=self.reason)

    async def give_up(self) -> None:
        """Stop automatic compaction for this turn after a failure; an overflow can still force one."""
        self._gave_up = True
        await self._output.emit(NoticeAdded(row_id=uuid4(), code=COMPACTION_FAILED, details=self.reason))
