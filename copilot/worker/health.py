"""Report on Redis, workers, sweeps and leases for diagnostics, each question with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

from django.db.models import FloatField
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Extract, Now

from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS, RedisCommandRefused, get_redis
from copilot.models import WorkerHeartbeat
from copilot.realtime import session_keys, worker_signals
from copilot.realtime.session_keys import LeaseRecord, SessionKeySurvey
from copilot.worker import heartbeat


@dataclass(frozen=True, kw_only=True)
class RedisHealth:
    version: str
    used_bytes: int
    limit_bytes: int  # 0 means no limit
    eviction_policy: str
    role: str
    append_only: bool
    is_cluster: bool
    saving: bool  # the last RDB snapshot and the last AOF write succeeded
    time: float  # seconds since the epoch, by the server's clock


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    worker: str
    version: str
    queues: tuple[str, ...]
    draining: bool
    silent_seconds: float
    host: str = ""
    pid: int | None = None
    uptime_seconds: float | None = None
    active_turns: int = 0


def get_redis_health() -> RedisHealth:
    info, (seconds, microseconds) = ask_with_deadline(_read_redis_info)
    return RedisHealth(
        version=str(info["redis_version"]),
        used_bytes=int(info["used_memory"]),
        limit_bytes=int(info["maxmemory"]),
        eviction_policy=str(info["maxmemory_policy"]),
        role=str(info["role"]),
        append_only=bool(info["aof_enabled"]),
        is_cluster=bool(info.get("cluster_enabled")),
        saving="err" not in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status")),
        time=seconds + microseconds / 1e6,
    )


def _read_redis_info() -> tuple[dict[str, Any], tuple[int, int]]:
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.info()
        pipe.time()
        info, moment = pipe.execute()
    return info, moment


# --- A deadline for Redis ----------------------------------------------------------------------------

T = TypeVar("T")
ANSWER_TIMEOUT_SECONDS = 1.0  # a page with a dozen figures must load quickly without them too
OUTAGE_PAUSE_SECONDS = 5.0  # no question after a missed deadline, or every figure of a page would wait again
_outage = {"until": 0.0}


def ask_with_deadline(ask: Callable[[], T], *, extra_seconds: float = 0.0) -> T:
    """Call `ask` in a thread and return its answer within a second, or raise `ServiceUnavailable`.

    This holds even while Redis accepts connections and never answers. The thread continues until its own timeouts end it.
    """
    if time.monotonic() < _outage["until"]:
        raise ServiceUnavailable("no answer in time") from TimeoutError("timed out")
    answer: Future[T] = Future()
    Thread(target=_ask_in_thread, args=[answer, ask], name="redis question", daemon=True).start()
    try:
        return answer.result(timeout=ANSWER_TIMEOUT_SECONDS + extra_seconds)
    except TimeoutError:
        _outage["until"] = time.monotonic() + OUTAGE_PAUSE_SECONDS
        raise ServiceUnavailable("no answer in time") from TimeoutError("timed out")
    except (*REDIS_OUTAGE_ERRORS, RedisCommandRefused) as problem:
        raise ServiceUnavailable(type(problem).__name__) from problem


def _ask_in_thread(answer: Future[T], ask: Callable[[], T]) -> None:
    try:
        answer.set_result(ask())
    except (*REDIS_OUTAGE_ERRORS, RedisCommandRefused) as problem:
        answer.set_exception(problem)


def reset_outage() -> None:
    _outage["until"] = 0.0


# --- Questions ---------------------------------------------------------------------------------------


def get_sweep_age_seconds() -> float | None:
    return ask_with_deadline(heartbeat.read_sweep_age_seconds)


def was_sweep_blind() -> bool:
    return ask_with_deadline(heartbeat.was_last_sweep_blind)


def get_work_ages(names: Sequence[str]) -> dict[str, float]:
    return ask_with_deadline(lambda: heartbeat.read_work_ages(names))


def list_workers() -> list[WorkerStatus]:
    """List every worker that has a row, latest heartbeat first. Ages are measured by the database's clock."""
    workers = WorkerHeartbeat.objects.annotate(
        silent_seconds=_seconds_since("last_beat_at"), uptime_seconds=_seconds_since("started_at")
    )
    return [
        WorkerStatus(
            worker=beat.worker,
            version=beat.version,
            queues=tuple(beat.queues),
            draining=beat.draining,
            silent_seconds=beat.silent_seconds,
            host=beat.host,
            pid=beat.pid,
            uptime_seconds=round(beat.uptime_seconds, 1),
            active_turns=len(beat.turns),
        )
        for beat in workers.order_by("-last_beat_at")
    ]


def _seconds_since(field: str) -> Combinable:
    return Cast(Extract(Now(), "epoch"), FloatField()) - Cast(Extract(field, "epoch"), FloatField())


def get_wakeup_count() -> int:
    return ask_with_deadline(worker_signals.count_wakeups)


def get_leases(session_ids: list[str]) -> dict[str, LeaseRecord]:
    return ask_with_deadline(lambda: session_keys.read_leases(session_ids))


def survey_sessions(budget_seconds: float) -> SessionKeySurvey:
    # The survey may take longer than an answer. The ping tells that from an outage.
    ask_with_deadline(lambda: get_redis().ping())
    return ask_with_deadline(
        lambda: session_keys.survey_session_keys(budget_seconds), extra_seconds=budget_seconds
    )
