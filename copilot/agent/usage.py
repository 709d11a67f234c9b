"""The end of a model call as its row and billing keep it (A19.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from django.db import InterfaceError, OperationalError

from config.core import trace_context
from config.core.db import run_in_thread
from copilot.agent.interfaces import Clock, SystemClock
from copilot.agent.outputs import ModelCallEnded, ModelCallStarted
from copilot.agent.services import ProcessServices
from copilot.chat import model_calls
from copilot.chat.turns import ClaimedTurn
from copilot.realtime.events import Event, UsageRecorded

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
RECORDING_DEADLINE_SECONDS = 3_600.0  # B5.2: then the row stays open, and the sweep counts it at an estimate


def build_usage_record(
    call: ModelCallEnded, *, turn_id: UUID | None, session_id: UUID, user_id: int, purpose: str = "reply"
) -> model_calls.FinishedCall:
    """Made as the call ends: the moment decides in whose window its cost falls."""
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


async def record_usage(spent: model_calls.FinishedCall, clock: Clock | None = None) -> str:
    """Row and money, tried under the same id until the database takes them; nobody's answer waits for it (A19.6).

    The answer says where billing took the cost from.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return await run_in_thread(model_calls.finish_model_call, spent)
        except (OperationalError, InterfaceError):
            if clock.now() - began > RECORDING_DEADLINE_SECONDS:
                log.exception("billing_leak: the cost of call %s could not be recorded", spent.call_id)
                return ""
            log.warning("the database is unreachable, the cost of a call is recorded later")
            await clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


# MERGED agent.callbook: The model calls of one run: a row before each request, and its cost after it, off the stream's path (A19.3, A19.6).

RECORDING_WAIT_SECONDS = 1.0
GUESSED_COST_SOURCES = ("CATALOGUE", "UNKNOWN")
COST_REPORTING_PROVIDERS = ("openai_chat",)  # gateways do; the vendors' own protocols have no field for it


class ModelCallRecorder:
    def __init__(
        self, turn: ClaimedTurn, services: ProcessServices, publish: Callable[[Event], None]
    ) -> None:
        self.last_started_number = (
            1 if turn.has_first_call else 0
        )  # the number of the last call whose row stands
        self._turn = turn
        self._services = services
        self._publish = publish
        self._last_sent_number = 0  # the number of the last call whose request went out
        self._recordings: list[asyncio.Task[None]] = []
        self._warned = False
        self.recorded_count = 0  # calls of this run whose cost is recorded

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
        """The row of a run's first call came with the claim or the preparation."""
        return number <= self.last_started_number

    async def withdraw_unsent(self) -> None:
        """A row that was made ahead of a request which is not sent any more costs nothing."""
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
        spent = build_usage_record(
            call,
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            user_id=turn.user_id,
            purpose=call.purpose,
        )
        self._recordings.append(self._services.run_in_background(self._record(spent)))

    async def _record(self, spent: model_calls.FinishedCall) -> None:
        self._warn_missing_cost(spent, await record_usage(spent))
        self.recorded_count += 1
        self._publish(UsageRecorded(purpose=spent.purpose, tokens=spent.tokens))

    def _warn_missing_cost(self, spent: model_calls.FinishedCall, source: str) -> None:
        """A server that could have told the price and did not is worth a line in the log, once a turn (A19.4)."""
        if (
            spent.cost is None
            and source in GUESSED_COST_SOURCES
            and spent.provider in COST_REPORTING_PROVIDERS
            and not self._warned
        ):
            self._warned = True
            log.warning("%s told no cost; it was priced as %s", spent.model, source)

    async def wait_until_recorded(self) -> None:
        """Wait until the cost of every call that has ended is known."""
        if unknown := [task for task in self._recordings if not task.done()]:
            await asyncio.wait(unknown)

    async def wait_briefly(self) -> None:
        """Costs are recorded before the ending is told; a database that is slow delays it a second at most."""
        if self._recordings:
            await asyncio.wait(self._recordings, timeout=RECORDING_WAIT_SECONDS)
