"""How the live servers and workers are doing, for diagnostics, which speaks to neither itself (D1, D6)."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import FloatField
from django.db.models.functions import Cast, Extract, Now

from copilot.errors import Unavailable
from copilot.live import beats, wakeups
from copilot.live.client import RedisDown, blocking
from copilot.models import WorkerBeat


@dataclass(frozen=True, kw_only=True)
class RedisHealth:
    version: str
    used_bytes: int
    limit_bytes: int  # 0: none
    eviction_policy: str
    role: str
    append_only: bool
    saving: bool  # whether the last snapshot and the last append came through
    time: float  # seconds since the epoch, by the server's clock


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    worker: str
    version: str
    queues: tuple[str, ...]
    draining: bool
    silent_seconds: float


def redis_health() -> RedisHealth:
    try:
        with blocking().pipeline(transaction=False) as pipe:
            pipe.info()
            pipe.time()
            info, (seconds, microseconds) = pipe.execute()
    except RedisDown as problem:
        raise Unavailable(type(problem).__name__) from problem
    return RedisHealth(
        version=str(info["redis_version"]),
        used_bytes=int(info["used_memory"]),
        limit_bytes=int(info["maxmemory"]),
        eviction_policy=str(info["maxmemory_policy"]),
        role=str(info["role"]),
        append_only=bool(info["aof_enabled"]),
        saving="err" not in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status")),
        time=seconds + microseconds / 1e6,
    )


def reaper_silent_seconds() -> float | None:
    """How long ago the sweep looked last; None when it never did, or Redis forgot."""
    try:
        return beats.sweep_age_seconds()
    except RedisDown as problem:
        raise Unavailable(type(problem).__name__) from problem


def workers_seen() -> list[WorkerView]:
    """Every worker with a row, the latest sign of life first; the database's clock tells the age."""
    silent = Cast(Extract(Now(), "epoch"), FloatField()) - Cast(Extract("beat_at", "epoch"), FloatField())
    seen = WorkerBeat.objects.annotate(silent_seconds=silent).order_by("-beat_at")
    return [
        WorkerView(
            worker=beat.worker,
            version=beat.version,
            queues=tuple(beat.queues),
            draining=beat.draining,
            silent_seconds=beat.silent_seconds,
        )
        for beat in seen
    ]


def wakeups_waiting() -> int:
    """Turns that were put on the list of wake-ups and taken by no worker yet."""
    try:
        return wakeups.waiting()
    except RedisDown as problem:
        raise Unavailable(type(problem).__name__) from problem
