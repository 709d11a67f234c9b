"""The model calls of one run: a row before each request, and its cost after it, off the stream's path (A19.3, A19.6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from copilot import traces, usage
from copilot.agent.parts import ModelCallEnded, ModelCallStarted
from copilot.agent.services import Services
from copilot.agent.spending import recorded, spent_on
from copilot.bridge import in_thread
from copilot.events import Event, UsageRecorded
from copilot.turns import Claimed

log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
GUESSED = ("CATALOGUE", "UNKNOWN")
TELLS_COSTS = ("openai_chat",)  # gateways do; the vendors' own protocols have no field for it


class CallBook:
    def __init__(self, turn: Claimed, services: Services, publish: Callable[[Event], None]) -> None:
        self.begun = 1 if turn.begun else 0  # the number of the last call whose row stands
        self._turn = turn
        self._services = services
        self._publish = publish
        self._sent = 0  # the number of the last call whose request went out
        self._recordings: list[asyncio.Task[None]] = []
        self._warned = False
        self.recorded_number = 0  # calls of this run whose cost is recorded

    async def begin(self, call: ModelCallStarted) -> None:
        self._sent = call.number
        if not self.stands(call.number):
            entry = call.entry
            await in_thread(
                usage.begin, self._turn.turn_id, call.number, entry.provider, entry.model, call.purpose
            )

    def stands(self, number: int) -> bool:
        """The row of a run's first call came with the claim or the preparation."""
        return number <= self.begun

    async def withdraw(self) -> None:
        """A row that was made ahead of a request which is not sent any more costs nothing."""
        if self.begun > self._sent:
            await in_thread(usage.withdraw, self._turn.turn_id, self.begun)

    def end(self, call: ModelCallEnded) -> None:
        turn = self._turn
        traces.past(
            "provider",
            call.latency_ms / 1000,
            provider=call.entry.provider,
            model=call.entry.model,
            number=self._sent,
            input_tokens=call.tokens.input,
            output_tokens=call.tokens.output,
            aborted=call.aborted,
        )
        spent = spent_on(
            call,
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            user_id=turn.user_id,
            purpose=call.purpose,
        )
        self._recordings.append(self._services.in_background(self._record(spent)))

    async def _record(self, spent: usage.Spent) -> None:
        self._note_absent(spent, await recorded(spent))
        self.recorded_number += 1
        self._publish(UsageRecorded(purpose=spent.purpose, tokens=spent.tokens))

    def _note_absent(self, spent: usage.Spent, source: str) -> None:
        """A server that could have told the price and did not is worth a line in the log, once a turn (A19.4)."""
        if spent.cost is None and source in GUESSED and spent.provider in TELLS_COSTS and not self._warned:
            self._warned = True
            log.warning("%s told no cost; it was priced as %s", spent.model, source)

    async def recorded(self) -> None:
        """Wait until the cost of every call that has ended is known."""
        if unknown := [task for task in self._recordings if not task.done()]:
            await asyncio.wait(unknown)

    async def settle(self) -> None:
        """Costs are recorded before the ending is told; a database that is slow delays it a second at most."""
        if self._recordings:
            await asyncio.wait(self._recordings, timeout=SETTLE_SECONDS)
