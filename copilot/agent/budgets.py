"""A turn's money as it is recorded: its calls, its children, its budget, and the user's own limit (A10.4, B6.10)."""

from __future__ import annotations

from django.conf import settings

from billing import queries as billing_queries
from billing import usage as billing_usage
from billing.errors import LimitReached
from copilot import usage
from copilot.agent.commits import retried
from copilot.agent.ports import Spending
from copilot.agent.recorder import Recorder
from copilot.turns import Claimed


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


def smallest(*bounds: int) -> int:
    """Of those that bind; 0 is no bound."""
    return min((bound for bound in bounds if bound), default=0)
