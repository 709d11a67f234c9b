"""Messages that wait although nothing runs: the turn that the reaper would start, by hand (D3, D9)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from copilot import recovery
from copilot.queries import executions
from diagnostics import conditions, counting, reading
from diagnostics.audit import State
from diagnostics.repairs.actions import Action
from diagnostics.repairs.results import Batch, Reasons, States


class StartStranded(Action):
    """By the ids of sessions; those in which something runs, or whose owner is at a limit, are left alone."""

    takes_ids = True

    def matching(self, most: int) -> tuple[list[UUID], int]:
        found = sorted(counting.stranded_sessions())
        return found[:most], len(found)

    def against(self, batch: Batch) -> Reasons:
        with reading.one_moment():
            known = executions.owners_of(list(batch.ids))
            waiting, free = _waiting(), set(counting.stranded_sessions())
        return {one: _objection(one, known, waiting) for one in batch.ids if one not in free}

    def change(self, one: UUID, batch: Batch) -> str | None:
        """Of two who start it at once the lease lets one; the turn it opens is what the other finds."""
        if one not in _waiting() or not recovery.start_stranded(one):
            return "changed_meanwhile"
        return "limit_refused" if one in _waiting() else None  # or its owner is suspended

    def states(self, ids: Sequence[UUID]) -> States:
        waiting = _waiting()
        return {
            one: State(status="stranded" if one in waiting else "started", fence=0)
            for one in executions.owners_of(list(ids))
        }


def _waiting() -> set[UUID]:
    """Those that a limit keeps, too."""
    return set(executions.stranded_sessions(seconds=conditions.STRANDED_SECONDS))


def _objection(one: UUID, known: dict[UUID, int], waiting: set[UUID]) -> str:
    if one not in known:
        return "not_found"
    return "limit_refused" if one in waiting else "not_stuck"
