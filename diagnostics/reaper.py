"""What the reaper does by itself is recorded like the repairs of people, once it is done (D8, D10)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import TypeVar
from uuid import UUID

from django.db import Error, connection

from copilot.chat import turn_selectors
from copilot.worker import heartbeat, liveness, recovery
from diagnostics import audit
from diagnostics.audit import AuditOutcome, RepairRecord, TargetChange, TargetState

T = TypeVar("T")
SESSION_ACTIONS: Mapping[str, str] = {
    "start_stranded": "started",
    "restore": "put back",
}  # which have no status


def run_and_audit(act: Callable[[], T]) -> T:
    """Afterwards, so that no dead worker's turn waits for the record of another."""
    began = time.monotonic()
    with recovery.collect_repairs() as notes:
        try:
            return act()
        finally:
            if notes:
                _audit_notes(notes, round((time.monotonic() - began) * 1000))


def _audit_notes(notes: Sequence[recovery.RepairRecord], duration_ms: int) -> None:
    after = {one: TargetState(status=status, fence=fence) for one, status, fence in _load_states(notes)}
    for act, group in groupby(sorted(notes, key=lambda note: note.act), key=lambda note: note.act):
        healed = list(group)
        changes = [
            TargetChange(
                id=note.id,
                before=TargetState(status=note.status, fence=note.fence),
                after=after.get(note.id, TargetState(status=SESSION_ACTIONS.get(act, ""), fence=0)),
            )
            for note in healed
        ]
        entry = RepairRecord(
            action=act,
            outcome=AuditOutcome.DONE,
            ids=[note.id for note in healed],
            changes=changes,
            result={"action": act, "changed": len(healed)},
            duration_ms=duration_ms,
        )
        audit.record_repair(audit.REAPER_ACTOR, entry)


def _load_states(notes: Sequence[recovery.RepairRecord]) -> list[tuple[UUID, str, int]]:
    return turn_selectors.list_turn_states(note.id for note in notes)


# MERGED tasks: The reaper's looks: find turns nobody runs any more and have them healed; and the clock's other duties (D10, D13).
# MERGED tasks: `loops` calls them. Every act is one conditional update, so two processes that sweep at once do no harm.

log = logging.getLogger(__name__)

PROBE_INTERVAL_SECONDS = 0.5  # how often it is asked whether workers' locks are free (D2)
MASS_DEATH_COUNT = 10  # this many at once, and more than half, is first taken for a fault of the monitoring
SLOW_SWEEP_INTERVAL_SECONDS = 30.0
STRANDED_RETRY_SECONDS = 55.0  # what a limit kept goes out at most a minute after its reset (B7.3)


@dataclass
class ReaperState:
    """What one tick leaves for the next, in the one process that reaps."""

    ticks: int = 0
    suspected: dict[str, int] = field(default_factory=dict)  # turn → the tick since which it looks dead
    tried: dict[UUID, float] = field(default_factory=dict)  # stranded sessions, and when they were started
    slow_sweep_at: float = 0.0
    probed_at: float = 0.0


_state = ReaperState()


_sweep_lock = threading.Lock()


def run_sweep() -> bool:
    """Look for dead workers, then sweep for everything else; False when it could not see, or somebody in this process does it."""
    if not _sweep_lock.acquire(blocking=False):
        return False
    try:
        return _run_guarded(_probe_and_sweep)
    finally:
        _sweep_lock.release()


def run_probe() -> bool:
    """Look for dead workers alone; False when it could not see, or somebody in this process sweeps."""
    if not _sweep_lock.acquire(blocking=False):
        return False
    try:
        return _run_guarded(take_over_dead_turns)
    finally:
        _sweep_lock.release()


def _run_guarded(look: Callable[[], object]) -> bool:
    try:
        look()
    except Error:
        log.error("reaper_blind: Postgres cannot be read, nobody is judged")
        connection.close()
        _record_blindness()
        return False
    except recovery.SWEEP_OUTAGE_ERRORS:
        log.error("reaper_blind: Redis cannot be read, nobody is judged")
        return False
    return True


def _probe_and_sweep() -> None:
    _state.ticks += 1
    run_and_audit(
        recovery.rebuild_redis_if_restored
    )  # first: judged by what Redis kept of lost rows, nobody lives
    for step in (
        take_over_dead_turns,
        *SWEEP_STEPS,
    ):  # a sweep that has much to do keeps no dead worker's turns waiting
        run_and_audit(step)
        _take_over_if_due()


def _record_blindness() -> None:
    try:
        recovery.record_sweep(blind=True)
    except recovery.SWEEP_OUTAGE_ERRORS:
        log.error("reaper_blind: nor can Redis")


def take_over_dead_turns() -> int:
    """Take over the turns of dead workers, and only those."""
    return run_and_audit(_find_and_take_over)


def _find_and_take_over() -> int:
    suspects = liveness.list_turn_evidence()
    verdicts = liveness.judge_liveness(suspects)
    if any(verdict == "unknown" for verdict in verdicts.values()):
        log.error("reaper_blind: Redis cannot be read, turns not beating in Postgres are not judged")
    dead = [suspect for suspect in suspects if verdicts[suspect.turn_id] == "dead"]
    known = _state.suspected
    _state.suspected = {one.turn_id: known.get(one.turn_id, _state.ticks) for one in dead}
    if len(dead) >= MASS_DEATH_COUNT and 2 * len(dead) > len(suspects):
        log.warning(
            "%d of %d turns look dead: only what looked so in an earlier tick is", len(dead), len(suspects)
        )
        agreed = [suspect for suspect in dead if _state.suspected[suspect.turn_id] < _state.ticks]
    else:
        agreed = dead
    _state.probed_at = time.monotonic()
    return recovery.repair_each(agreed, recovery.take_over_turn, seconds=inf)  # nothing is more urgent


def _take_over_if_due() -> None:
    if time.monotonic() - _state.probed_at > PROBE_INTERVAL_SECONDS:
        take_over_dead_turns()


def run_sweep_steps() -> None:
    """Stops not obeyed, tasks lost, messages stranded, and what Redis forgot."""
    for step in SWEEP_STEPS:
        run_and_audit(step)


def _start_stranded_sessions() -> None:
    now = time.monotonic()
    for session_id in recovery.list_sessions_to_start():
        if now - _state.tried.get(session_id, -STRANDED_RETRY_SECONDS) >= STRANDED_RETRY_SECONDS:
            _state.tried[session_id] = now
            recovery.repair_each([session_id], recovery.start_stranded_session)


def _run_slow_sweep() -> None:
    """What costs more to find than a tick can spare."""
    now = time.monotonic()
    if now - _state.slow_sweep_at > SLOW_SWEEP_INTERVAL_SECONDS:
        looked_before, _state.slow_sweep_at = _state.slow_sweep_at > 0, now
        _state.tried = {one: at for one, at in _state.tried.items() if now - at < STRANDED_RETRY_SECONDS}
        recovery.publish_lost_endings()
        recovery.expire_approval_requests()
        recovery.record_calls_of_lost_workers(looked_before=looked_before)
        recovery.remove_stale_leases()
        heartbeat.purge_old_workers()


SWEEP_STEPS: tuple[Callable[[], object], ...] = (
    recovery.restore_redis_if_empty,
    recovery.override_stops,
    recovery.publish_unpublished_sessions,
    recovery.resend_queued_turns,
    _start_stranded_sessions,
    _run_slow_sweep,
    recovery.record_sweep,
)
