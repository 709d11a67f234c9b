"""A turn's money as it is recorded: its calls, its children, its budget, and the user's own limit (A10.4, B6.10)."""

from __future__ import annotations

from django.conf import settings

from billing import queries as billing_queries
from billing import usage as billing_usage
from billing.errors import LimitReached
from copilot import usage
from copilot.agent.ports import Spending
from copilot.agent.recorder import Recorder
from copilot.agent.services import Services
from copilot.bridge import in_thread, retried
from copilot.turns import Claimed

LOOK_SECONDS = 10.0  # between two looks at the user's windows


class TurnBudget:
    """The loop's budget. Policy is read once, at the first look: a turn keeps the ceiling it began with."""

    def __init__(self, turn: Claimed, recorder: Recorder) -> None:
        self._turn = turn
        self._recorder = recorder
        self._plan: billing_queries.Plan | None = None

    async def spending(self) -> Spending:
        await self._recorder.calls.recorded()
        return await retried(self._look, self._turn)

    def _look(self, turn: Claimed) -> Spending:
        plan = self._plan = self._plan or billing_queries.plan(turn.user_id)
        found = usage.spending(turn.turn_id)
        return Spending(
            spent=found.spent,
            reserved=found.reserved,
            budget=smallest(settings.TURN_BUDGET_MICRODOLLARS, plan.turn_ceiling_microdollars, found.given),
            limit=self._limit() if plan.limit_binds_running_turns else "",
        )

    def _limit(self) -> str:
        try:
            billing_usage.check(self._turn.user_id)
        except LimitReached as reached:
            return reached.message
        return ""


class LimitUsed:
    """How much of the user's fuller window is used, as of the last recorded call (A19.7).

    Looked up beside a turn that goes on after a call, and seldom: one that answers at once asks for nothing.
    """

    def __init__(self, turn: Claimed, recorder: Recorder, services: Services) -> None:
        self._turn = turn
        self._calls = recorder.calls
        self._services = services
        self._percent: float | None = None
        self._looked_at = float("-inf")
        self._calls_seen = 0

    def percent(self, now: float) -> float | None:
        """As known now; a newer figure is on its way when calls were recorded since."""
        if self._calls.recorded_number > self._calls_seen and now - self._looked_at >= LOOK_SECONDS:
            self._calls_seen, self._looked_at = self._calls.recorded_number, now
            self._services.in_background(self._look())
        return self._percent

    async def _look(self) -> None:
        self._percent = await in_thread(used_percent, self._turn.user_id)


def used_percent(user_id: int) -> float | None:
    """Of the fuller window; None where no limit binds."""
    view = billing_queries.usage(user_id)
    return max((one.percent_used for one in (view.daily, view.weekly) if one is not None), default=None)


def may_prolong(turn: Claimed) -> bool:
    """Whether the user's limit lets the turn go on with what is queued, whatever binds it while it runs (B7)."""
    try:
        billing_usage.admit(turn.user_id, str(turn.turn_id))
    except LimitReached:
        return False
    return True


def smallest(*bounds: int) -> int:
    """Of those that bind; 0 is no bound."""
    return min((bound for bound in bounds if bound), default=0)
