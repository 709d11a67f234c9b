"""What the reaper does by itself is recorded like the repairs of people, once it is done (D8, D10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar
from uuid import UUID

from copilot import recovery
from copilot.queries import executions
from diagnostics import audit
from diagnostics.audit import Change, Entry, Outcome, State

T = TypeVar("T")
OF_SESSIONS: Mapping[str, str] = {"start_stranded": "started", "restore": "put back"}  # which have no status


def recorded(act: Callable[[], T]) -> T:
    """Afterwards, so that no dead worker's turn waits for the record of another."""
    began = time.monotonic()
    with recovery.journal.listen() as notes:
        try:
            return act()
        finally:
            if notes:
                _record(notes, round((time.monotonic() - began) * 1000))


def _record(notes: Sequence[recovery.journal.Healed], duration_ms: int) -> None:
    after = {one: State(status=status, fence=fence) for one, status, fence in _states(notes)}
    for act, group in groupby(sorted(notes, key=lambda note: note.act), key=lambda note: note.act):
        healed = list(group)
        changes = [
            Change(
                id=note.id,
                before=State(status=note.status, fence=note.fence),
                after=after.get(note.id, State(status=OF_SESSIONS.get(act, ""), fence=0)),
            )
            for note in healed
        ]
        entry = Entry(
            action=act,
            outcome=Outcome.DONE,
            ids=[note.id for note in healed],
            changes=changes,
            result={"action": act, "changed": len(healed)},
            duration_ms=duration_ms,
        )
        audit.record(audit.THE_REAPER, entry)


def _states(notes: Sequence[recovery.journal.Healed]) -> list[tuple[UUID, str, int]]:
    return executions.states_of(note.id for note in notes)
