"""How the live servers and workers are doing, for diagnostics, which speaks to neither itself (D1, D6)."""

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
from copilot.models import WorkerBeat
from copilot.realtime import session_keys, turn_queue
from copilot.realtime.session_keys import LeaseRecord as Lease
from copilot.realtime.session_keys import SessionKeySurvey as Survey
from copilot.worker import heartbeat


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
    """Ask Redis how it is; a refusal is the cause of the `Unavailable` that is raised."""
    info, (seconds, microseconds) = ask_with_deadline(_read_redis_info)
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


def _read_redis_info() -> tuple[dict[str, Any], tuple[int, int]]:
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.info()
        pipe.time()
        info, moment = pipe.execute()
    return info, moment


# --- a deadline for Redis ----------------------------------------------------------------------------

T = TypeVar("T")
ANSWER_TIMEOUT_SECONDS = 1.0  # of a page that shows a dozen figures: without them it must come as quickly
OUTAGE_PAUSE_SECONDS = (
    5.0  # after a missed deadline nothing is asked, or every figure of a page would wait again
)
_outage = {"until": 0.0}


def ask_with_deadline(ask: Callable[[], T], *, more_seconds: float = 0.0) -> T:
    """Answer within a second or raise `Unavailable`, also while Redis takes connections and says nothing.

    The question goes on behind our back until its own timeouts end it.
    """
    if time.monotonic() < _outage["until"]:
        raise ServiceUnavailable("no answer in time") from TimeoutError("timed out")
    asked: Future[T] = Future()
    Thread(target=_ask_in_thread, args=[asked, ask], name="inventory", daemon=True).start()
    try:
        return asked.result(timeout=ANSWER_TIMEOUT_SECONDS + more_seconds)
    except TimeoutError:
        _outage["until"] = time.monotonic() + OUTAGE_PAUSE_SECONDS
        raise ServiceUnavailable("no answer in time") from TimeoutError("timed out")
    except (*REDIS_OUTAGE_ERRORS, RedisCommandRefused) as problem:
        raise ServiceUnavailable(type(problem).__name__) from problem


def _ask_in_thread(asked: Future[T], ask: Callable[[], T]) -> None:
    try:
        asked.set_result(ask())
    except (*REDIS_OUTAGE_ERRORS, RedisCommandRefused) as problem:
        asked.set_exception(problem)


def reset_outage() -> None:
    """Ask again at once."""
    _outage["until"] = 0.0


def get_sweep_age_seconds() -> float | None:
    """How long ago the sweep looked last; None when it never did, or Redis forgot."""
    return ask_with_deadline(heartbeat.read_sweep_age_seconds)


def was_sweep_blind() -> bool:
    """Whether it could see nothing when it looked last."""
    return ask_with_deadline(heartbeat.was_last_sweep_blind)


def get_work_ages(names: Sequence[str]) -> dict[str, float]:
    """Seconds since each kind of work was done last; one that nobody remembers is left out."""
    return ask_with_deadline(lambda: heartbeat.read_work_ages(names))


def list_workers() -> list[WorkerStatus]:
    """Every worker with a row, the latest sign of life first; the database's clock tells the age."""
    seen = WorkerBeat.objects.annotate(
        silent_seconds=_seconds_since("beat_at"), uptime_seconds=_seconds_since("started_at")
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
        for beat in seen.order_by("-beat_at")
    ]


def _seconds_since(moment: str) -> Combinable:
    return Cast(Extract(Now(), "epoch"), FloatField()) - Cast(Extract(moment, "epoch"), FloatField())


def get_wakeup_count() -> int:
    """Turns that were put on the list of wake-ups and taken by no worker yet."""
    return ask_with_deadline(turn_queue.count_wakeups)


def get_leases(session_ids: list[str]) -> dict[str, Lease]:
    """Of these sessions, those that are held."""
    return ask_with_deadline(lambda: session_keys.read_leases(session_ids))


def survey_sessions(budget_seconds: float) -> Survey:
    """Leases, logs and queues of all sessions, as far as the budget reaches."""
    ask_with_deadline(
        lambda: get_redis().ping()
    )  # a long walk is no outage; silence before its first step is
    return ask_with_deadline(
        lambda: session_keys.survey_session_keys(budget_seconds), more_seconds=budget_seconds
    )
