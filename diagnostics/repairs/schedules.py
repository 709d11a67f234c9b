"""Schedules that can no longer run are switched off, with the reason, and their owners told (D11)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from copilot import recovery
from copilot.schedules import timetable
from diagnostics.audit import State
from diagnostics.repairs.actions import Action
from diagnostics.repairs.results import Batch, Reasons, States

PREFIX = "Switched off: "


class CleanUpOrphanedSchedules(Action):
    """By ids or by preview; those that are in order, and the system's own, are not touched."""

    takes_ids = takes_all = True

    def matching(self, most: int) -> tuple[list[UUID], int]:
        found = [schedule.pk for schedule, _ in timetable.orphans()]
        return found[:most], len(found)

    def against(self, batch: Batch) -> Reasons:
        found = timetable.found(list(batch.ids))
        return {
            one: "not_orphaned" if one in found else "not_found"
            for one in batch.ids
            if one not in found or found[one].next_run is None or timetable.orphan_of(found[one]) is None
        }

    def change(self, one: UUID, batch: Batch) -> str | None:
        """Judged again just before, and by the update only while it is on."""
        schedule = timetable.found([one]).get(one)
        orphan = timetable.orphan_of(schedule) if schedule is not None else None
        if schedule is None or orphan is None:
            return "not_orphaned"
        off = recovery.switch_off(schedule, f"{PREFIX}{orphan.detail or orphan.reason}")
        return None if off else "changed_meanwhile"

    def states(self, ids: Sequence[UUID]) -> States:
        found = timetable.found(list(ids))
        return {
            one: State(status="off" if schedule.next_run is None else "on", fence=0)
            for one, schedule in found.items()
        }
