"""Everything sessions hold in Redis, seen in passing: leases, logs and queues, by SCAN and within a budget (D6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from copilot.live import keys
from copilot.live.client import blocking

BATCH = 500
TOP = 50
EVENT_BYTES = 300  # of an ordinary event; only the longest logs are measured


@dataclass(frozen=True, kw_only=True)
class Lease:
    session_id: str
    turn_id: str
    fence: int | None  # None until a worker has it
    ttl_ms: int | None  # None for one that waits for a worker (T4.2)
    held_seconds: float


@dataclass(frozen=True, kw_only=True)
class Log:
    session_id: str
    length: int
    ttl_ms: int | None
    bytes: int | None = None
    oldest_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Queue:
    session_id: str
    length: int


@dataclass
class Survey:
    leases: list[Lease] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    partial: bool = False


def take(budget_seconds: float) -> Survey:
    """One walk over all keys; what the budget does not reach is left out, and said to be."""
    deadline = time.monotonic() + budget_seconds
    seen = Survey()
    now = blocking().time()[0]
    for batch in _batches():
        _look(batch, now, seen)
        if time.monotonic() > deadline:
            seen.partial = True
            break
    seen.logs.sort(key=lambda log: log.length, reverse=True)
    seen.logs[:TOP] = _measured(seen.logs[:TOP])
    return seen


def _batches() -> Iterator[list[str]]:
    cursor = 0
    while True:
        cursor, names = blocking().scan(cursor, match=keys.OF_SESSIONS, count=BATCH)
        yield [name.decode() for name in names if isinstance(name, bytes)]
        if cursor == 0:
            return


def _look(names: list[str], now: int, seen: Survey) -> None:
    """Two round trips at most, whatever the batch holds."""
    known = [name for name in names if name.rpartition(":")[2] in ("lease", "log", "queue")]
    if not known:
        return
    with blocking().pipeline(transaction=False) as pipe:
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
        session_id, ttl_ms = keys.session_of_key(name), life if life >= 0 else None
        match name.rpartition(":")[2]:
            case "lease" if value:
                seen.leases.append(_lease(session_id, value, ttl_ms, now))
            case "log":
                seen.logs.append(Log(session_id=session_id, length=value, ttl_ms=ttl_ms))
            case "queue" if value:
                seen.queues.append(Queue(session_id=session_id, length=value))


def _lease(session_id: str, fields: dict[bytes, bytes], ttl_ms: int | None, now: int) -> Lease:
    fence = fields.get(b"fence")
    return Lease(
        session_id=session_id,
        turn_id=fields.get(b"turn", b"").decode(),
        fence=int(fence) if fence else None,
        ttl_ms=ttl_ms,
        held_seconds=max(0.0, now - int(fields.get(b"claimed_at", now))),
    )


def leases_of(session_ids: list[str]) -> dict[str, Lease]:
    """Of these sessions, those that are held."""
    if not session_ids:
        return {}
    with blocking().pipeline(transaction=False) as pipe:
        pipe.time()
        for session_id in session_ids:
            pipe.hgetall(keys.lease(session_id))
            pipe.pttl(keys.lease(session_id))
        (now, _), *answers = pipe.execute()
    held = zip(session_ids, answers[::2], answers[1::2], strict=True)
    return {
        session_id: _lease(session_id, fields, life if life >= 0 else None, now)
        for session_id, fields, life in held
        if fields
    }


def _measured(logs: list[Log]) -> list[Log]:
    """The longest ones, with what they weigh and where they begin."""
    if not logs:
        return []
    with blocking().pipeline(transaction=False) as pipe:
        for log in logs:
            pipe.memory_usage(keys.log(log.session_id))
            pipe.xrange(keys.log(log.session_id), count=1)
        answers = pipe.execute()
    return [
        Log(
            session_id=log.session_id,
            length=log.length,
            ttl_ms=log.ttl_ms,
            bytes=weight,
            oldest_id=first[0][0].decode() if first else "",
        )
        for log, weight, first in zip(logs, answers[::2], answers[1::2], strict=True)
    ]
