"""List workers, leases, event logs and queues, and what is wrong with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from celery import current_app
from django.conf import settings
from kombu.exceptions import KombuError

from copilot.chat import turn_selectors
from copilot.realtime import session_keys
from copilot.worker import health
from diagnostics.findings.figures import Worker, WorkerStatus
from diagnostics.queries import BackgroundQuery, CachedValue, wait_for_answer

INSPECT_TIMEOUT_SECONDS = 0.8
INSPECT_GRACE_SECONDS = 0.2  # for the round trip; a broker that hangs would never answer
LATE_AFTER_SECONDS = 60.0
REMEMBERED_SECONDS = 600.0  # how long a worker without heartbeat stays listed after its last answer
SURVEY_BUDGET_SECONDS = 2.0
CACHE_SECONDS = 5.0
# A worker counts as deaf six seconds after its last wake-up (three and a half of silence, two until its next heartbeat), and
# must be a finding after ten. Heartbeats are one small query; Celery's answers cost far more and are cached longer.
BEATS_SECONDS = 2.0
FINDINGS_ANSWER_SECONDS = 120.0
InspectAnswers = Mapping[str, object]


# --- Workers ---


@dataclass(frozen=True, kw_only=True)
class CeleryWorkerAnswer:
    name: str
    host: str
    pid: int | None
    queues: tuple[str, ...]
    reserved: int | None
    uptime_seconds: float | None


def classify_worker(age_seconds: float) -> WorkerStatus:
    if age_seconds <= settings.WORKER_BEAT_LIFE_SECONDS:
        return "alive"
    return "late" if age_seconds <= LATE_AFTER_SECONDS else "lost"


def list_workers() -> tuple[Worker, ...]:
    """Return workers with a heartbeat joined with those that answer Celery, the latest sign of life first."""
    return _cached_workers.get()


def list_workers_for_findings() -> tuple[Worker, ...]:
    """Return the same with older answers of Celery: findings follow from heartbeats, and asking costs 90 Redis commands."""
    return _cached_workers_for_findings.get()


def find_workers(*, max_answer_age_seconds: float = CACHE_SECONDS) -> tuple[Worker, ...]:
    asked = _celery.get(max_age_seconds=max_answer_age_seconds)
    by_place = {(one.host, one.pid): one for one in asked}
    seen = health.list_workers()
    beating = tuple(_build_worker(view, by_place.pop((view.host, view.pid), None)) for view in seen)
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


_last_answers: dict[str, tuple[CeleryWorkerAnswer, float]] = {}


def _remember_answers(
    by_place: Mapping[tuple[str, int | None], CeleryWorkerAnswer], *, beating: Set[tuple[str, int | None]]
) -> tuple[Worker, ...]:
    """List workers without a heartbeat that answered recently but not now: busy, gone, or cut off with the broker.

    Celery waits a second for answers and does not name silent workers; leaving them out looked as if they were gone.
    """
    now = time.monotonic()
    _last_answers.update({one.name: (one, now) for one in by_place.values() if one.pid is not None})
    for name, (_, at) in list(_last_answers.items()):
        if now - at > REMEMBERED_SECONDS:
            del _last_answers[name]
    heard = {one.name for one in by_place.values()}
    return tuple(
        Worker(id=one.name, status="unknown", host=one.host, pid=one.pid, queues=one.queues)
        for name, (one, _) in sorted(_last_answers.items())
        if name not in heard and (one.host, one.pid) not in beating
    )


def _build_worker(view: health.WorkerStatus, answered: CeleryWorkerAnswer | None) -> Worker:
    return Worker(
        id=view.worker,
        status=classify_worker(view.silent_seconds),
        host=view.host,
        pid=view.pid,
        version=view.version,
        uptime_seconds=view.uptime_seconds,
        beat_age_seconds=round(view.silent_seconds, 1),
        queues=view.queues,  # Celery's answer would also come from a worker that receives no turns
        active_turns=view.active_turns,
        reserved=answered.reserved if answered else None,
        draining=view.draining,
    )


def is_worker_deaf(view: health.WorkerStatus) -> bool:
    return _build_worker(view, None).is_deaf


def inspect_celery() -> list[CeleryWorkerAnswer]:
    """Ask three questions at once, for a second in all, because nobody knows how many will answer. Silence is no error."""
    asked = [question.start() for question in _INSPECT_QUERIES]
    until = time.monotonic() + INSPECT_TIMEOUT_SECONDS + INSPECT_GRACE_SECONDS
    stats, queues, reserved = (wait_for_answer(one, seconds=until - time.monotonic()) or {} for one in asked)
    return [
        _parse_answer(name, stats.get(name), queues.get(name), reserved.get(name))
        for name in sorted({*stats, *queues, *reserved})
    ]


def _run_inspect(question: str) -> InspectAnswers:
    method: Callable[[], InspectAnswers | None] = getattr(
        current_app.control.inspect(timeout=INSPECT_TIMEOUT_SECONDS), question
    )
    return method() or {}


_INSPECT_QUERIES = tuple(
    BackgroundQuery(f"celery {name}", partial(_run_inspect, name), away=(OSError, KombuError))
    for name in ("stats", "active_queues", "reserved")
)


def _parse_answer(name: str, stats: object, queues: object, reserved: object) -> CeleryWorkerAnswer:
    figures = stats if isinstance(stats, dict) else {}
    pid, uptime = figures.get("pid"), figures.get("uptime")
    return CeleryWorkerAnswer(
        name=name,
        host=name.partition("@")[2],
        pid=pid if isinstance(pid, int) else None,
        queues=tuple(str(queue["name"]) for queue in queues) if isinstance(queues, list) else (),
        reserved=len(reserved) if isinstance(reserved, list) else None,
        uptime_seconds=float(uptime) if isinstance(uptime, int | float) else None,
    )


# --- Session keys in Redis ---


@dataclass(frozen=True, kw_only=True)
class Leases:
    results: tuple[session_keys.LeaseRecord, ...]
    total: int
    without_turn: tuple[str, ...]  # sessions held for a turn that has ended or does not exist
    partial: bool


@dataclass(frozen=True, kw_only=True)
class Streams:
    count: int
    events: int
    bytes_estimate: int
    without_life: int
    longest: int
    top: tuple[session_keys.EventLogRecord, ...]
    partial: bool


@dataclass(frozen=True, kw_only=True)
class Buffers:
    count: int
    messages: int
    longest: int
    oldest_at: datetime | None
    partial: bool


MAX_LEASES = 200
LEASE_GRACE_SECONDS = 10  # the request may be about to open the turn


def list_leases() -> Leases:
    survey = _cached_survey.get()
    unfinished = turn_selectors.list_unfinished_ids([lease.turn_id for lease in survey.leases])
    odd = [
        lease.session_id
        for lease in survey.leases
        if lease.turn_id not in unfinished and lease.held_seconds > LEASE_GRACE_SECONDS
    ]
    return Leases(
        results=tuple(survey.leases[:MAX_LEASES]),
        total=len(survey.leases),
        without_turn=tuple(odd),
        partial=survey.partial,
    )


def survey_streams() -> Streams:
    survey = _cached_survey.get()
    measured = [log for log in survey.logs if log.bytes is not None]
    rest = sum(log.length for log in survey.logs) - sum(log.length for log in measured)
    return Streams(
        count=len(survey.logs),
        events=sum(log.length for log in survey.logs),
        bytes_estimate=sum(log.bytes or 0 for log in measured) + rest * session_keys.TYPICAL_EVENT_BYTES,
        without_life=sum(log.ttl_ms is None for log in survey.logs),
        longest=survey.logs[0].length if survey.logs else 0,
        top=tuple(survey.logs[: session_keys.LARGEST_LOGS_MEASURED]),
        partial=survey.partial,
    )


def survey_buffers() -> Buffers:
    survey = _cached_survey.get()
    lengths = [queue.length for queue in survey.queues]
    return Buffers(
        count=len(lengths),
        messages=sum(lengths),
        longest=max(lengths, default=0),
        oldest_at=turn_selectors.get_oldest_pending_at(),
        partial=survey.partial,
    )


_celery = CachedValue(lambda: inspect_celery(), CACHE_SECONDS)  # noqa: PLW0108 - tests replace the function
_cached_workers = CachedValue(find_workers, BEATS_SECONDS)
_cached_workers_for_findings = CachedValue(
    partial(find_workers, max_answer_age_seconds=FINDINGS_ANSWER_SECONDS), BEATS_SECONDS
)
_cached_survey = CachedValue(lambda: health.survey_sessions(SURVEY_BUDGET_SECONDS), CACHE_SECONDS)


def clear_inventory_cache() -> None:
    _celery.clear()
    _cached_workers.clear()
    _cached_workers_for_findings.clear()
    _cached_survey.clear()
    health.reset_outage()
