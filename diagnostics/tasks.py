"""The reaper's looks: find turns nobody runs any more and have them healed; and the clock's other duties (D10, D13).

`loops` calls them. Every act is one conditional update, so two processes that sweep at once do no harm.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from uuid import UUID

from celery import shared_task
from django.db import Error, connection

from copilot import recovery, workers
from copilot.queries import executions
from diagnostics import audit_delivery, keeping, samples, snapshot
from diagnostics.recording import recorded

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.5  # how often it is asked whether workers' locks are free (D2)
MASS_DEATH = 10  # this many at once, and more than half, is first taken for a fault of the monitoring
SLOW_SWEEP_SECONDS = 30.0
STRANDED_RETRY_SECONDS = 55.0  # what a limit kept goes out at most a minute after its reset (B7.3)


@dataclass
class Memory:
    """What one tick leaves for the next, in the one process that reaps."""

    ticks: int = 0
    suspected: dict[str, int] = field(default_factory=dict)  # turn → the tick since which it looks dead
    tried: dict[UUID, float] = field(default_factory=dict)  # stranded sessions, and when they were started
    slow_sweep_at: float = 0.0
    probed_at: float = 0.0


_memory = Memory()


_ticking = threading.Lock()


@shared_task(name="diagnostics.tasks.reap", ignore_result=True, acks_late=False)
def reap() -> None:
    """Sweep once: by hand, or when the scheduler of an older release asks. `loops` sweeps by itself."""
    tick()


def tick() -> bool:
    """Look for dead workers, then sweep for everything else; False when it could not see, or somebody in this process does it."""
    if not _ticking.acquire(blocking=False):
        return False
    try:
        return _seen(_tick)
    finally:
        _ticking.release()


def probe_once() -> bool:
    """Look for dead workers alone; False when it could not see, or somebody in this process sweeps."""
    if not _ticking.acquire(blocking=False):
        return False
    try:
        return _seen(probe)
    finally:
        _ticking.release()


def _seen(look: Callable[[], object]) -> bool:
    try:
        look()
    except Error:
        log.error("reaper_blind: Postgres cannot be read, nobody is judged")
        connection.close()
        _note_blindness()
        return False
    except recovery.Away:
        log.error("reaper_blind: Redis cannot be read, nobody is judged")
        return False
    return True


def _tick() -> None:
    _memory.ticks += 1
    recorded(recovery.rebuild_if_restored)  # first: judged by what Redis kept of lost rows, nobody lives
    for step in (probe, *SWEEP):  # a sweep that has much to do keeps no dead worker's turns waiting
        recorded(step)
        _probe_if_due()


def _note_blindness() -> None:
    try:
        recovery.note_look(blind=True)
    except recovery.Away:
        log.error("reaper_blind: nor can Redis")


def probe() -> int:
    """Take over the turns of dead workers, and only those."""
    return recorded(_probe)


def _probe() -> int:
    suspects = executions.suspects()
    verdicts = executions.judge(suspects)
    if any(verdict == "unknown" for verdict in verdicts.values()):
        log.error("reaper_blind: Redis cannot be read, turns not beating in Postgres are not judged")
    dead = [suspect for suspect in suspects if verdicts[suspect.turn_id] == "dead"]
    known = _memory.suspected
    _memory.suspected = {one.turn_id: known.get(one.turn_id, _memory.ticks) for one in dead}
    if len(dead) >= MASS_DEATH and 2 * len(dead) > len(suspects):
        log.warning(
            "%d of %d turns look dead: only what looked so in an earlier tick is", len(dead), len(suspects)
        )
        agreed = [suspect for suspect in dead if _memory.suspected[suspect.turn_id] < _memory.ticks]
    else:
        agreed = dead
    _memory.probed_at = time.monotonic()
    return recovery.each(agreed, recovery.take_over, seconds=inf)  # nothing is more urgent


def _probe_if_due() -> None:
    if time.monotonic() - _memory.probed_at > PROBE_SECONDS:
        probe()


def sweep() -> None:
    """Stops not obeyed, tasks lost, messages stranded, and what Redis forgot."""
    for step in SWEEP:
        recorded(step)


def _start_stranded() -> None:
    now = time.monotonic()
    for session_id in recovery.stranded_sessions():
        if now - _memory.tried.get(session_id, -STRANDED_RETRY_SECONDS) >= STRANDED_RETRY_SECONDS:
            _memory.tried[session_id] = now
            recovery.each([session_id], recovery.start_stranded)


def _sweep_slowly() -> None:
    """What costs more to find than a tick can spare."""
    now = time.monotonic()
    if now - _memory.slow_sweep_at > SLOW_SWEEP_SECONDS:
        looked_before, _memory.slow_sweep_at = _memory.slow_sweep_at > 0, now
        _memory.tried = {one: at for one, at in _memory.tried.items() if now - at < STRANDED_RETRY_SECONDS}
        recovery.tell_lost_endings()
        recovery.expire_requests()
        recovery.settle_forgotten_calls(looked_before=looked_before)
        recovery.remove_stale_leases()
        workers.purge_lost()


SWEEP: tuple[Callable[[], object], ...] = (
    recovery.restore_if_forgotten,
    recovery.override_stops,
    recovery.tell_untold,
    recovery.send_again,
    _start_stranded,
    _sweep_slowly,
    recovery.note_look,
)


# --- once a day --------------------------------------------------------------------------------------


@shared_task(name="diagnostics.tasks.sample", ignore_result=True)
def sample() -> None:
    """Record the figures of this minute: by hand, or when the scheduler of an older release asks. `loops` does it by itself."""
    samples.record(snapshot.compute())


@shared_task(name="diagnostics.tasks.purge", ignore_result=True)
def purge() -> None:
    keeping.purge()


@shared_task(name="diagnostics.tasks.deliver_audit", ignore_result=True)
def deliver_audit() -> None:
    audit_delivery.deliver_due()
