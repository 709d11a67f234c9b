"""Whether the next model call may be paid for: the turn's budget, and the user's own limit (A10.4, B6.10)."""

from __future__ import annotations

from copilot.agent.guards import Limit
from copilot.agent.ports import Budget, Spending


class Purse:
    """One turn's. The first call of a turn that did not wait is not asked for: its limit was checked just before."""

    def __init__(self, budget: Budget, *, resumed: bool) -> None:
        self._budget = budget
        self._spent = None if resumed else 0  # when the round began; unknown of an earlier run
        self._last_round = 0

    async def before_round(self) -> Limit | None:
        """Why no further round may begin; one that costs what the last one did must fit too."""
        spending = await self._budget.spending()
        self._last_round = 0 if self._spent is None else spending.spent - self._spent
        self._spent = spending.spent
        return self._refusal(spending)

    async def inside_round(self) -> Limit | None:
        """The same for a further call of the round that runs: another try, or one after a compaction."""
        return self._refusal(await self._budget.spending())

    def _refusal(self, spending: Spending) -> Limit | None:
        taken = spending.spent + spending.reserved
        if spending.budget and (taken >= spending.budget or taken + self._last_round > spending.budget):
            return Limit(code="budget_reached")
        return Limit(code="limit_reached", details=spending.limit) if spending.limit else None
