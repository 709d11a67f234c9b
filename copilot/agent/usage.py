"""Record model calls: a row before each request, and its usage afterwards without delaying the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError

from config.core import trace_context
from config.core.db import run_in_thread
from copilot.agent.interfaces import Clock, SystemClock
from copilot.agent.outputs import ModelCallEnded, ModelCallStarted
from copilot.agent.services import ProcessServices
from copilot.chat import model_calls
from copilot.chat.turns import ClaimedTurn
from copilot.realtime.events import Event, UsageRecorded

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
RECORDING_DEADLINE_SECONDS = 3_600.0  # after that the sweep records an estimate for the open row


def build_usage_record(
    call: ModelCallEnded, *, turn_id: UUID | None, session_id: UUID, user_id: int, purpose: str = "reply"
) -> model_calls.FinishedCall:
    """Build the record as the call ends, because that moment decides which limit its cost counts towards."""
    return model_calls.FinishedCall(
        call_id=call.id,
        turn_id=turn_id,
        session_id=session_id,
        user_id=user_id,
        ended_at=datetime.now(UTC),
        provider=call.entry.provider,
        model=call.entry.model,
        tokens=call.tokens,
        cost=call.cost,
        estimated=call.estimated,
        aborted=call.aborted,
        refused_before_work=call.refused_before_work,
        latency_ms=call.latency_ms,
        first_token_ms=call.first_token_ms,
        response_id=call.response_id,
        purpose=purpose,
        ending=call.ending,
        partial=call.partial,
    )


async def record_usage(usage: model_calls.FinishedCall, clock: Clock | None = None) -> str:
    """Record a call's row and cost, retrying with the same id until the database accepts them.

    Return the source that billing used for the cost.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return await run_in_thread(model_calls.finish_model_call, usage)
        except (OperationalError, InterfaceError):
            if clock.now() - began > RECORDING_DEADLINE_SECONDS:
                log.exception("billing_leak", call_id=str(usage.call_id), leak_type="usage_not_recorded")
                return ""
            log.warning("usage_recording_delayed", call_id=str(usage.call_id), retry_seconds=pause)
            await clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


# --- The calls of one run ---

RECORDING_WAIT_SECONDS = 1.0
GUESSED_COST_SOURCES = ("CATALOGUE", "UNKNOWN")
COST_REPORTING_PROVIDERS = ("openai_chat",)  # gateways report it; the vendors' own protocols cannot


class ModelCallRecorder:
    def __init__(
        self, turn: ClaimedTurn, services: ProcessServices, publish: Callable[[Event], None]
    ) -> None:
        # The number of the last call that has a row.
        self.last_started_number = 1 if turn.has_first_call else 0
        self._turn = turn
        self._services = services
        self._publish = publish
        self._last_sent_number = 0  # of the last call whose request was sent
        self._recordings: list[asyncio.Task[None]] = []
        self._warned = False
        self.recorded_count = 0  # calls of this run whose usage is recorded

    async def record_start(self, call: ModelCallStarted) -> None:
        self._last_sent_number = call.number
        if not self.is_recorded(call.number):
            entry = call.entry
            await run_in_thread(
                model_calls.start_model_call,
                self._turn.turn_id,
                call.number,
                entry.provider,
                entry.model,
                call.purpose,
            )

    def is_recorded(self, number: int) -> bool:
        """Check for a row; that of a run's first call is made by the claim or the preparation."""
        return number <= self.last_started_number

    async def withdraw_unsent(self) -> None:
        if self.last_started_number > self._last_sent_number:
            await run_in_thread(
                model_calls.withdraw_unsent_call, self._turn.turn_id, self.last_started_number
            )

    def record_end(self, call: ModelCallEnded) -> None:
        turn = self._turn
        trace_context.record_past_span(
            "provider",
            call.latency_ms / 1000,
            provider=call.entry.provider,
            model=call.entry.model,
            number=self._last_sent_number,
            input_tokens=call.tokens.input,
            output_tokens=call.tokens.output,
            aborted=call.aborted,
        )
        usage = build_usage_record(
            call,
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            user_id=turn.user_id,
            purpose=call.purpose,
        )
        self._recordings.append(self._services.run_in_background(self._record(usage)))

    async def _record(self, usage: model_calls.FinishedCall) -> None:
        self._warn_missing_cost(usage, await record_usage(usage))
        self.recorded_count += 1
        self._publish(UsageRecorded(purpose=usage.purpose, tokens=usage.tokens))

    def _warn_missing_cost(self, usage: model_calls.FinishedCall, source: str) -> None:
        if (
            usage.cost is None
            and source in GUESSED_COST_SOURCES
            and usage.provider in COST_REPORTING_PROVIDERS
            and not self._warned
        ):
            self._warned = True
            log.warning("cost_not_reported", model=usage.model, cost_source=source)

    async def wait_until_recorded(self) -> None:
        if pending := [task for task in self._recordings if not task.done()]:
            await asyncio.wait(pending)

    async def wait_briefly(self) -> None:
        """Let usage be recorded before the ending is published, but delay it by a second at most."""
        if self._recordings:
            await asyncio.wait(self._recordings, timeout=RECORDING_WAIT_SECONDS)
