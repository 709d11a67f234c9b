"""Read a turn's spending, its budget and its user's limit."""

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

LIMIT_CHECK_SECONDS = 10.0  # between two reads of the user's limits


class TurnBudget:
    """Read the turn's budget. The plan is read once, so that the turn keeps the ceiling it began with."""

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
    """Track how much of the user's fuller limit is used, as of the last recorded call.

    The figure is refreshed in the background and rarely; a turn with a single call never reads it.
    """

    def __init__(self, turn: ClaimedTurn, recorder: TurnRecorder, services: ProcessServices) -> None:
        self._turn = turn
        self._calls = recorder.model_calls
        self._services = services
        self._percent: float | None = None
        self._refreshed_at = float("-inf")
        self._calls_seen = 0

    def current_percent(self, now: float) -> float | None:
        if self._calls.recorded_count > self._calls_seen and now - self._refreshed_at >= LIMIT_CHECK_SECONDS:
            self._calls_seen, self._refreshed_at = self._calls.recorded_count, now
            self._services.run_in_background(self._refresh())
        return self._percent

    async def _refresh(self) -> None:
        self._percent = await run_in_thread(read_limit_percent, self._turn.user_id)


def read_limit_percent(user_id: int) -> float | None:
    """Return the share of the daily or weekly limit, whichever is fuller; None without a limit."""
    view = usage_status.get_usage(user_id)
    limits = (limit for limit in (view.daily, view.weekly) if limit is not None)
    return max((limit.percent_used for limit in limits), default=None)


def can_extend_turn(turn: ClaimedTurn) -> bool:
    try:
        limit_checks.check_limits_and_hold(turn.user_id, str(turn.turn_id))
    except LimitReached:
        return False
    return True


def smallest_limit(*limits: int) -> int:
    """Return the smallest limit; 0 means no limit."""
    return min((limit for limit in limits if limit), default=0)
