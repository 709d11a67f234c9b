"""Everything sessions hold in Redis, seen in passing: leases, logs and queues, by SCAN and within a budget (D6)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from config.core.redis import get_redis
from copilot.realtime import redis_keys

SCAN_BATCH_SIZE = 500
LARGEST_LOGS_MEASURED = 50
TYPICAL_EVENT_BYTES = 300  # of an ordinary event; only the longest logs are measured


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    session_id: str
    turn_id: str
    fence: int | None  # None until a worker has it
    ttl_ms: int | None  # None for one that waits for a worker (T4.2)
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
    """One walk over all keys; what the budget does not reach is left out, and said to be."""
    deadline = time.monotonic() + budget_seconds
    seen = SessionKeySurvey()
    now = get_redis().time()[0]
    for batch in _scan_batches():
        _read_batch(batch, now, seen)
        if time.monotonic() > deadline:
            seen.partial = True
            break
    seen.logs.sort(key=lambda log: log.length, reverse=True)
    seen.logs[:LARGEST_LOGS_MEASURED] = _measure_logs(seen.logs[:LARGEST_LOGS_MEASURED])
    return seen


def _scan_batches() -> Iterator[list[str]]:
    cursor = 0
    while True:
        cursor, names = get_redis().scan(cursor, match=redis_keys.SESSION_KEY_PATTERN, count=SCAN_BATCH_SIZE)
        yield [name.decode() for name in names if isinstance(name, bytes)]
        if cursor == 0:
            return


def _read_batch(names: list[str], now: int, seen: SessionKeySurvey) -> None:
    """Two round trips at most, whatever the batch holds."""
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
    for name, value, life in zip(known, answers[::2], answers[1::2], strict=True):
        session_id, ttl_ms = redis_keys.parse_session_id(name), life if life >= 0 else None
        match name.rpartition(":")[2]:
            case "lease" if value:
                seen.leases.append(_parse_lease(session_id, value, ttl_ms, now))
            case "log":
                seen.logs.append(EventLogRecord(session_id=session_id, length=value, ttl_ms=ttl_ms))
            case "queue" if value:
                seen.queues.append(QueueRecord(session_id=session_id, length=value))


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
    """Of these sessions, those that are held."""
    if not session_ids:
        return {}
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.time()
        for session_id in session_ids:
            pipe.hgetall(redis_keys.lease_key(session_id))
            pipe.pttl(redis_keys.lease_key(session_id))
        (now, _), *answers = pipe.execute()
    held = zip(session_ids, answers[::2], answers[1::2], strict=True)
    return {
        session_id: _parse_lease(session_id, fields, life if life >= 0 else None, now)
        for session_id, fields, life in held
        if fields
    }


def _measure_logs(logs: list[EventLogRecord]) -> list[EventLogRecord]:
    """The longest ones, with what they weigh and where they begin."""
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
            bytes=weight,
            oldest_id=first[0][0].decode() if first else "",
        )
        for log, weight, first in zip(logs, answers[::2], answers[1::2], strict=True)
    ]


# MERGED live.wiping: Remove what Redis holds of sessions: of those gone for good, or of all when Postgres went back in time.


def delete_session_keys(session_ids: Sequence[str]) -> None:
    """One session at a time: its keys lie together, those of two may not."""
    for session_id in session_ids:
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
    """Remove the keys of every session, by SCAN; the sessions of each batch."""
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
