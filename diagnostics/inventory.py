"""What there is: workers, leases, event logs and queues, with what is odd about them (D6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from celery import current_app
from django.conf import settings
from kombu.exceptions import KombuError

from copilot.queries import executions, inventory
from diagnostics.findings import Worker, WorkerStatus
from diagnostics.shared import Question, Shared, answered

INSPECT_SECONDS = 0.8
LAST_SECONDS = 0.2  # for the way there and back; a broker that hangs would take for ever
LATE_SECONDS = 60.0
REMEMBERED_SECONDS = 600.0  # so long a worker without a beat is shown after its last answer
BUDGET_SECONDS = 2.0
CACHE_SECONDS = 5.0
# A worker is known as deaf five seconds after it heard the last wake-up (three of silence, two until its next beat), and
# must be a finding after ten. Beats are one small query; Celery's answers cost far more and are kept longer.
BEATS_SECONDS = 2.0
Answers = Mapping[str, object]


# --- workers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What one Celery worker said of itself."""

    name: str
    host: str
    pid: int | None
    queues: tuple[str, ...]
    reserved: int | None
    uptime_seconds: float | None


def status_of(age_seconds: float) -> WorkerStatus:
    if age_seconds <= settings.WORKER_BEAT_LIFE_SECONDS:
        return "alive"
    return "late" if age_seconds <= LATE_SECONDS else "lost"


def workers() -> tuple[Worker, ...]:
    """Return those that beat, joined with those that answer; the latest sign of life first."""
    return _workers.get()


def look_for_workers() -> tuple[Worker, ...]:
    asked = _celery.get()
    by_place = {(one.host, one.pid): one for one in asked}
    seen = inventory.workers_seen()
    beating = tuple(_beating(view, by_place.pop((view.host, view.pid), None)) for view in seen)
    silent = _remember_answers(by_place, beating={(view.host, view.pid) for view in seen})
    others = tuple(
        Worker(
            id=one.name,
            status="alive",
            host=one.host,
            pid=one.pid,
            uptime_seconds=one.uptime_seconds,
            queues=one.queues,
            reserved=one.reserved,
        )
        for one in by_place.values()
    )
    return beating + others + silent


_answered_at: dict[str, tuple[Answered, float]] = {}


def _remember_answers(
    by_place: Mapping[tuple[str, int | None], Answered], *, beating: Set[tuple[str, int | None]]
) -> tuple[Worker, ...]:
    """Show workers without a beat that answered lately and do not now: busy, gone, or cut off with the broker.

    Celery waits a second for answers and names nobody who was silent; leaving them out looked as if they were gone.
    """
    now = time.monotonic()
    _answered_at.update({one.name: (one, now) for one in by_place.values() if one.pid is not None})
    for name, (_, at) in list(_answered_at.items()):
        if now - at > REMEMBERED_SECONDS:
            del _answered_at[name]
    heard = {one.name for one in by_place.values()}
    return tuple(
        Worker(id=one.name, status="unknown", host=one.host, pid=one.pid, queues=one.queues)
        for name, (one, _) in sorted(_answered_at.items())
        if name not in heard and (one.host, one.pid) not in beating
    )


def _beating(view: inventory.WorkerView, answered: Answered | None) -> Worker:
    return Worker(
        id=view.worker,
        status=status_of(view.silent_seconds),
        host=view.host,
        pid=view.pid,
        version=view.version,
        uptime_seconds=view.uptime_seconds,
        beat_age_seconds=round(view.silent_seconds, 1),
        queues=view.queues,  # what it takes from; Celery's answer would also come from one that hears no turns
        active_turns=view.active_turns,
        reserved=answered.reserved if answered else None,
        draining=view.draining,
    )


def is_deaf(view: inventory.WorkerView) -> bool:
    return _beating(view, None).is_deaf


def ask_celery() -> list[Answered]:
    """Three questions at once, a second in all: nobody knows how many will answer. Silence is no answer, not an error."""
    asked = [question.asked() for question in _QUESTIONS]
    until = time.monotonic() + INSPECT_SECONDS + LAST_SECONDS
    stats, queues, reserved = (answered(one, seconds=until - time.monotonic()) or {} for one in asked)
    return [
        _answered(name, stats.get(name), queues.get(name), reserved.get(name))
        for name in sorted({*stats, *queues, *reserved})
    ]


def _inspect(question: str) -> Answers:
    method: Callable[[], Answers | None] = getattr(
        current_app.control.inspect(timeout=INSPECT_SECONDS), question
    )
    return method() or {}


_QUESTIONS = tuple(
    Question(f"celery {name}", partial(_inspect, name), away=(OSError, KombuError))
    for name in ("stats", "active_queues", "reserved")
)


def _answered(name: str, stats: object, queues: object, reserved: object) -> Answered:
    figures = stats if isinstance(stats, dict) else {}
    pid, uptime = figures.get("pid"), figures.get("uptime")
    return Answered(
        name=name,
        host=name.partition("@")[2],
        pid=pid if isinstance(pid, int) else None,
        queues=tuple(str(queue["name"]) for queue in queues) if isinstance(queues, list) else (),
        reserved=len(reserved) if isinstance(reserved, list) else None,
        uptime_seconds=float(uptime) if isinstance(uptime, int | float) else None,
    )


# --- what sessions hold in Redis ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Leases:
    results: tuple[inventory.Lease, ...]
    total: int
    without_turn: tuple[str, ...]  # sessions held for a turn that has ended, or that nobody knows
    partial: bool


@dataclass(frozen=True, kw_only=True)
class Streams:
    count: int
    events: int
    bytes_estimate: int
    without_life: int
    longest: int
    top: tuple[inventory.Log, ...]
    partial: bool


@dataclass(frozen=True, kw_only=True)
class Buffers:
    count: int
    messages: int
    longest: int
    oldest_at: datetime | None
    partial: bool


MOST_LEASES = 200
YOUNG_SECONDS = 10  # its request may be about to open the turn


def leases() -> Leases:
    survey = _survey.get()
    unfinished = executions.unfinished_among([lease.turn_id for lease in survey.leases])
    odd = [
        lease.session_id
        for lease in survey.leases
        if lease.turn_id not in unfinished and lease.held_seconds > YOUNG_SECONDS
    ]
    return Leases(
        results=tuple(survey.leases[:MOST_LEASES]),
        total=len(survey.leases),
        without_turn=tuple(odd),
        partial=survey.partial,
    )


def streams() -> Streams:
    survey = _survey.get()
    measured = [log for log in survey.logs if log.bytes is not None]
    rest = sum(log.length for log in survey.logs) - sum(log.length for log in measured)
    return Streams(
        count=len(survey.logs),
        events=sum(log.length for log in survey.logs),
        bytes_estimate=sum(log.bytes or 0 for log in measured) + rest * inventory.EVENT_BYTES,
        without_life=sum(log.ttl_ms is None for log in survey.logs),
        longest=survey.logs[0].length if survey.logs else 0,
        top=tuple(survey.logs[: inventory.TOP]),
        partial=survey.partial,
    )


def buffers() -> Buffers:
    survey = _survey.get()
    lengths = [queue.length for queue in survey.queues]
    return Buffers(
        count=len(lengths),
        messages=sum(lengths),
        longest=max(lengths, default=0),
        oldest_at=executions.oldest_pending_at(),
        partial=survey.partial,
    )


_celery = Shared(lambda: ask_celery(), CACHE_SECONDS)  # noqa: PLW0108 - tests replace the function
_workers = Shared(look_for_workers, BEATS_SECONDS)
_survey = Shared(lambda: inventory.survey_of_sessions(BUDGET_SECONDS), CACHE_SECONDS)


def forget() -> None:
    _celery.forget()
    _workers.forget()
    _survey.forget()
    inventory.forget_outage()
