"""Survey and delete the keys that sessions have in Redis: leases, event logs and queues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from config.core.redis import get_redis
from copilot.realtime import redis_keys

SCAN_BATCH_SIZE = 500
LARGEST_LOGS_MEASURED = 50
TYPICAL_EVENT_BYTES = 300  # an estimate for logs that are not measured


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    session_id: str
    turn_id: str
    fence: int | None  # None until a worker has acquired it
    ttl_ms: int | None  # None while it waits for a worker
    held_seconds: float


@dataclass(frozen=True, kw_only=True)
class EventLogRecord:
    session_id: str
    length: int
    ttl_ms: int | None
    bytes: int | None = None
    oldest_id: str = ""


@dataclass(frozen=True, kw_only=True)
class QueueRecord:
    session_id: str
    length: int


@dataclass
class SessionKeySurvey:
    leases: list[LeaseRecord] = field(default_factory=list)
    logs: list[EventLogRecord] = field(default_factory=list)
    queues: list[QueueRecord] = field(default_factory=list)
    partial: bool = False


def survey_session_keys(budget_seconds: float) -> SessionKeySurvey:
    """Scan all session keys once. A survey that runs out of time is marked as partial."""
    deadline = time.monotonic() + budget_seconds
    survey = SessionKeySurvey()
    now = get_redis().time()[0]
    for batch in _scan_batches():
        _read_batch(batch, now, survey)
        if time.monotonic() > deadline:
            survey.partial = True
            break
    survey.logs.sort(key=lambda log: log.length, reverse=True)
    survey.logs[:LARGEST_LOGS_MEASURED] = _measure_logs(survey.logs[:LARGEST_LOGS_MEASURED])
    return survey


def _scan_batches() -> Iterator[list[str]]:
    cursor = 0
    while True:
        cursor, names = get_redis().scan(cursor, match=redis_keys.SESSION_KEY_PATTERN, count=SCAN_BATCH_SIZE)
        yield [name.decode() for name in names if isinstance(name, bytes)]
        if cursor == 0:
            return


def _read_batch(names: list[str], now: int, survey: SessionKeySurvey) -> None:
    known = [name for name in names if name.rpartition(":")[2] in ("lease", "log", "queue")]
    if not known:
        return
    with get_redis().pipeline(transaction=False) as pipe:
        for name in known:
            match name.rpartition(":")[2]:
                case "lease":
                    pipe.hgetall(name)
                case "log":
                    pipe.xlen(name)
                case _:
                    pipe.zcard(name)
            pipe.pttl(name)
        answers = pipe.execute()
    for name, value, ttl in zip(known, answers[::2], answers[1::2], strict=True):
        session_id, ttl_ms = redis_keys.parse_session_id(name), ttl if ttl >= 0 else None
        match name.rpartition(":")[2]:
            case "lease" if value:
                survey.leases.append(_parse_lease(session_id, value, ttl_ms, now))
            case "log":
                survey.logs.append(EventLogRecord(session_id=session_id, length=value, ttl_ms=ttl_ms))
            case "queue" if value:
                survey.queues.append(QueueRecord(session_id=session_id, length=value))


def _parse_lease(session_id: str, fields: dict[bytes, bytes], ttl_ms: int | None, now: int) -> LeaseRecord:
    fence = fields.get(b"fence")
    return LeaseRecord(
        session_id=session_id,
        turn_id=fields.get(b"turn", b"").decode(),
        fence=int(fence) if fence else None,
        ttl_ms=ttl_ms,
        held_seconds=max(0.0, now - int(fields.get(b"claimed_at", now))),
    )


def read_leases(session_ids: list[str]) -> dict[str, LeaseRecord]:
    """Read the leases of these sessions; sessions without one are left out."""
    if not session_ids:
        return {}
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.time()
        for session_id in session_ids:
            pipe.hgetall(redis_keys.lease_key(session_id))
            pipe.pttl(redis_keys.lease_key(session_id))
        (now, _), *answers = pipe.execute()
    leases = zip(session_ids, answers[::2], answers[1::2], strict=True)
    return {
        session_id: _parse_lease(session_id, fields, ttl if ttl >= 0 else None, now)
        for session_id, fields, ttl in leases
        if fields
    }


def _measure_logs(logs: list[EventLogRecord]) -> list[EventLogRecord]:
    if not logs:
        return []
    with get_redis().pipeline(transaction=False) as pipe:
        for log in logs:
            pipe.memory_usage(redis_keys.event_log_key(log.session_id))
            pipe.xrange(redis_keys.event_log_key(log.session_id), count=1)
        answers = pipe.execute()
    return [
        EventLogRecord(
            session_id=log.session_id,
            length=log.length,
            ttl_ms=log.ttl_ms,
            bytes=size,
            oldest_id=first[0][0].decode() if first else "",
        )
        for log, size, first in zip(logs, answers[::2], answers[1::2], strict=True)
    ]


def delete_session_keys(session_ids: Sequence[str]) -> None:
    for session_id in session_ids:  # one at a time: in a cluster, two sessions may be on different nodes
        get_redis().unlink(
            redis_keys.lease_key(session_id),
            redis_keys.queue_key(session_id),
            redis_keys.fence_key(session_id),
            redis_keys.stop_key(session_id),
            redis_keys.stopped_through_key(session_id),
            redis_keys.event_log_key(session_id),
            redis_keys.side_question_key(session_id),
        )


def delete_all_session_keys(batch: int = 500) -> Iterator[set[str]]:
    """Delete the keys of all sessions by SCAN, and yield the session ids of each batch."""
    cursor = 0
    while True:
        cursor, names = get_redis().scan(cursor, match=redis_keys.SESSION_KEY_PATTERN, count=batch)
        with get_redis().pipeline(transaction=False) as pipe:
            for name in names:
                pipe.unlink(name)
            pipe.execute()
        yield {redis_keys.parse_session_id(name.decode()) for name in names if isinstance(name, bytes)}
        if cursor == 0:
            return
