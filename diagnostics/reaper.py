"""The reaper: find turns that nobody runs any more, recover them, and record each repair in the audit log.

`loops` calls it. Every repair is one conditional update, so two processes that sweep at once do no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import Error, connection

from copilot.chat import turn_selectors
from copilot.worker import heartbeat, liveness, recovery
from diagnostics import audit
from diagnostics.audit import AuditOutcome, RepairRecord, TargetChange, TargetState

T = TypeVar("T")
SESSION_ACTIONS: Mapping[str, str] = {
    "start_stranded": "started",
    "restore": "put back",
}  # sessions have no status, so these stand for it


def run_and_audit(action: Callable[[], T]) -> T:
    """Run an action and record its repairs afterwards, so that no takeover waits for the record of another."""
    started = time.monotonic()
    with recovery.collect_repairs() as notes:
        try:
            return action()
        finally:
            if notes:
                _audit_notes(notes, round((time.monotonic() - started) * 1000))


def _audit_notes(notes: Sequence[recovery.RepairRecord], duration_ms: int) -> None:
    after = {
        turn_id: TargetState(status=status, fence=fence) for turn_id, status, fence in _load_states(notes)
    }
    for act, group in groupby(sorted(notes, key=lambda note: note.act), key=lambda note: note.act):
        repaired = list(group)
        changes = [
            TargetChange(
                id=note.id,
                before=TargetState(status=note.status, fence=note.fence),
                after=after.get(note.id, TargetState(status=SESSION_ACTIONS.get(act, ""), fence=0)),
            )
            for note in repaired
        ]
        entry = RepairRecord(
            action=act,
            outcome=AuditOutcome.DONE,
            ids=[note.id for note in repaired],
            changes=changes,
            result={"action": act, "changed": len(repaired)},
            duration_ms=duration_ms,
        )
        audit.record_repair(audit.REAPER_ACTOR, entry)


def _load_states(notes: Sequence[recovery.RepairRecord]) -> list[tuple[UUID, str, int]]:
    return turn_selectors.list_turn_states(note.id for note in notes)


# --- Sweeps ---

log = structlog.get_logger(__name__)

PROBE_INTERVAL_SECONDS = 0.5  # how often workers are checked for death
MASS_DEATH_COUNT = 10  # this many at once, and more than half, may be a fault of the monitoring
SLOW_SWEEP_INTERVAL_SECONDS = 30.0
STRANDED_RETRY_SECONDS = 55.0  # messages held by a limit start within a minute of its reset


@dataclass
class ReaperState:
    """The state that one sweep leaves for the next, in the one process that reaps."""

    ticks: int = 0
    suspected: dict[str, int] = field(default_factory=dict)  # by turn, the tick since which it looks dead
    tried: dict[UUID, float] = field(default_factory=dict)  # by stranded session, when a start was last tried
    slow_sweep_at: float = 0.0
    probed_at: float = 0.0
    has_turns: bool = True  # the last look found running turns, or nobody has looked yet


_state = ReaperState()


_sweep_lock = threading.Lock()


def get_pause_seconds() -> float:
    """Return the pause until the next look: short while turns run, and until the next sweep while none does."""
    return PROBE_INTERVAL_SECONDS if _state.has_turns else settings.DIAG_SWEEP_SECONDS


def run_sweep() -> bool:
    """Take over dead turns, then sweep for everything else.

    Return False if a dependency is away or this process already sweeps.
    """
    if not _sweep_lock.acquire(blocking=False):
        return False
    try:
        return _run_guarded(_probe_and_sweep)
    finally:
        _sweep_lock.release()


def run_probe() -> bool:
    """Take over dead turns only. Return False if a dependency is away or this process already sweeps."""
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
        log.error("reaper_blind", dependency="postgres")
        connection.close()
        _record_blindness()
        return False
    except recovery.SWEEP_OUTAGE_ERRORS:
        log.error("reaper_blind", dependency="redis")
        return False
    return True


def _probe_and_sweep() -> None:
    _state.ticks += 1
    # First of all: after a restore of the database, Redis describes lost rows and every worker would look dead.
    run_and_audit(recovery.rebuild_redis_if_restored)
    # Dead turns are checked between the steps, so that a long sweep does not delay their takeover.
    for step in (take_over_dead_turns, *SWEEP_STEPS):
        run_and_audit(step)
        _take_over_if_due()


def _record_blindness() -> None:
    try:
        recovery.record_sweep(blind=True)
    except recovery.SWEEP_OUTAGE_ERRORS:
        log.error("reaper_blind", dependency="redis")


def take_over_dead_turns() -> int:
    return run_and_audit(_find_and_take_over)


def _find_and_take_over() -> int:
    suspects = liveness.list_turn_evidence()
    _state.has_turns = bool(suspects)
    verdicts = liveness.judge_liveness(suspects)
    if any(verdict == "unknown" for verdict in verdicts.values()):
        log.error("reaper_blind", dependency="redis")
    dead = [suspect for suspect in suspects if verdicts[suspect.turn_id] == "dead"]
    known = _state.suspected
    _state.suspected = {suspect.turn_id: known.get(suspect.turn_id, _state.ticks) for suspect in dead}
    if len(dead) >= MASS_DEATH_COUNT and 2 * len(dead) > len(suspects):
        # Only turns that already looked dead in an earlier tick are taken over.
        log.warning("mass_death_suspected", dead=len(dead), turns=len(suspects))
        confirmed = [suspect for suspect in dead if _state.suspected[suspect.turn_id] < _state.ticks]
    else:
        confirmed = dead
    _state.probed_at = time.monotonic()
    return recovery.repair_each(confirmed, recovery.take_over_turn, seconds=inf)  # nothing is more urgent


def _take_over_if_due() -> None:
    if time.monotonic() - _state.probed_at > PROBE_INTERVAL_SECONDS:
        take_over_dead_turns()


def run_sweep_steps() -> None:
    """Override overdue stops, resend lost tasks, start stranded messages, and restore what Redis lost."""
    for step in SWEEP_STEPS:
        run_and_audit(step)


def _start_stranded_sessions() -> None:
    now = time.monotonic()
    for session_id in recovery.list_sessions_to_start():
        if now - _state.tried.get(session_id, -STRANDED_RETRY_SECONDS) >= STRANDED_RETRY_SECONDS:
            _state.tried[session_id] = now
            recovery.repair_each([session_id], recovery.start_stranded_session)


def _run_slow_sweep() -> None:
    """Run the checks that are too expensive for every tick."""
    now = time.monotonic()
    if now - _state.slow_sweep_at > SLOW_SWEEP_INTERVAL_SECONDS:
        has_run_before, _state.slow_sweep_at = _state.slow_sweep_at > 0, now
        _state.tried = {
            session_id: at for session_id, at in _state.tried.items() if now - at < STRANDED_RETRY_SECONDS
        }
        recovery.publish_lost_endings()
        recovery.expire_approval_requests()
        recovery.record_calls_of_lost_workers(looked_before=has_run_before)
        recovery.remove_stale_leases()
        heartbeat.purge_old_workers()


SWEEP_STEPS: tuple[Callable[[], object], ...] = (
    recovery.restore_redis_if_empty,
    recovery.override_stops,
    recovery.publish_unpublished_sessions,
    recovery.resend_queued_turns,
    _start_stranded_sessions,
    recovery.deliver_lost_results,
    _run_slow_sweep,
    recovery.record_sweep,
)
