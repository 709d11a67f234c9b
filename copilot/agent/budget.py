"""A turn's money as it is recorded: its calls, its children, its budget, and the user's own limit (A10.4, B6.10)."""

from __future__ import annotations

from django.conf import settings

from billing.errors import LimitReached
from billing.selectors import plan_status, usage_status
from billing.usage import limit_checks
from config.core.db import run_in_thread, run_in_thread_with_retry
from copilot.agent.interfaces import BudgetStatus
from copilot.agent.recorder import TurnRecorder
from copilot.agent.services import ProcessServices
from copilot.chat import model_calls
from copilot.chat.turns import ClaimedTurn

LIMIT_CHECK_SECONDS = 10.0  # between two looks at the user's windows


class TurnBudget:
    """The loop's budget. Policy is read once, at the first look: a turn keeps the ceiling it began with."""

    def __init__(self, turn: ClaimedTurn, recorder: TurnRecorder) -> None:
        self._turn = turn
        self._recorder = recorder
        self._plan: plan_status.PlanTerms | None = None

    async def read_spending(self) -> BudgetStatus:
        await self._recorder.model_calls.wait_until_recorded()
        return await run_in_thread_with_retry(self._read_spending, self._turn)

    def _read_spending(self, turn: ClaimedTurn) -> BudgetStatus:
        plan = self._plan = self._plan or plan_status.get_plan_terms(turn.user_id)
        found = model_calls.get_turn_spending(turn.turn_id)
        return BudgetStatus(
            spent=found.spent,
            reserved=found.reserved,
            budget=smallest_limit(
                settings.TURN_BUDGET_MICRODOLLARS, plan.turn_ceiling_microdollars, found.budget
            ),
            limit=self._limit_message() if plan.limit_binds_running_turns else "",
        )

    def _limit_message(self) -> str:
        try:
            limit_checks.check_limits(self._turn.user_id)
        except LimitReached as reached:
            return reached.message
        return ""


class LimitUsage:
    """How much of the user's fuller window is used, as of the last recorded call (A19.7).

    Looked up beside a turn that goes on after a call, and seldom: one that answers at once asks for nothing.
    """

    def __init__(self, turn: ClaimedTurn, recorder: TurnRecorder, services: ProcessServices) -> None:
        self._turn = turn
        self._calls = recorder.model_calls
        self._services = services
        self._percent: float | None = None
        self._looked_at = float("-inf")
        self._calls_seen = 0

    def current_percent(self, now: float) -> float | None:
        """As known now; a newer figure is on its way when calls were recorded since."""
        if self._calls.recorded_count > self._calls_seen and now - self._looked_at >= LIMIT_CHECK_SECONDS:
            self._calls_seen, self._looked_at = self._calls.recorded_count, now
            self._services.run_in_background(self._refresh())
        return self._percent

    async def _refresh(self) -> None:
        self._percent = await run_in_thread(read_limit_percent, self._turn.user_id)


def read_limit_percent(user_id: int) -> float | None:
    """Of the fuller window; None where no limit binds."""
    view = usage_status.get_usage(user_id)
    return max((one.percent_used for one in (view.daily, view.weekly) if one is not None), default=None)


def can_extend_turn(turn: ClaimedTurn) -> bool:
    """Whether the user's limit lets the turn go on with what is queued, whatever binds it while it runs (B7)."""
    try:
        limit_checks.check_limits_and_hold(turn.user_id, str(turn.turn_id))
    except LimitReached:
        return False
    return True


def smallest_limit(*bounds: int) -> int:
    """Of those that bind; 0 is no bound."""
    return min((bound for bound in bounds if bound), default=0)
