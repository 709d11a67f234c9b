"""The figures of one moment from which findings are derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from diagnostics.work_ages import WORKER_START_SECONDS

WorkerStatus = Literal["alive", "late", "lost", "unknown"]  # unknown: answered recently, but not now


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures by name; None stands for a source that did not answer, or for a mean of nothing."""

    taken_at: datetime
    degraded: tuple[str, ...] = ()

    running: int | None = None
    queued: int | None = None
    waiting: int | None = None
    never_started: int | None = None
    cancel_backlog: int | None = None
    orphaned_running: int | None = None
    orphaned_queued: int | None = None
    long_running_1h: int | None = None
    long_running_24h: int | None = None
    stuck_queued: int | None = None
    waiting_old: int | None = None
    oldest_running_seconds: float | None = None
    oldest_queued_seconds: float | None = None

    invalid_total: int | None = None
    invalid_queued_started_without_attempt: int | None = None
    invalid_queued_attempted_without_start: int | None = None
    invalid_running_without_start: int | None = None
    invalid_waiting_without_start: int | None = None
    invalid_ended_without_end: int | None = None
    invalid_unended_with_end: int | None = None

    broker_depth: Mapping[str, int] | None = None
    broker_unacked: int | None = None
    pending_messages: int | None = None
    stranded_sessions: int | None = None

    failed_1h: int | None = None
    failed_24h: int | None = None
    succeeded_1h: int | None = None
    succeeded_24h: int | None = None
    cancelled_24h: int | None = None
    failure_ratio_1h: float | None = None
    failure_ratio_24h: float | None = None
    failures_per_hour_24h: float | None = None
    throughput_per_hour_24h: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    queue_wait_p95_ms: float | None = None
    first_event_p95_ms: float | None = None
    recovered_24h: int | None = None

    active_sessions: int | None = None
    active_users: int | None = None
    active_agents: int | None = None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker process, known by its heartbeat, by its answer to Celery, or both."""

    id: str
    status: WorkerStatus
    host: str = ""
    pid: int | None = None
    version: str = ""
    uptime_seconds: float | None = None
    beat_age_seconds: float | None = None
    queues: tuple[str, ...] = ()
    active_turns: int | None = None
    reserved: int | None = None
    draining: bool = False

    @property
    def is_deaf(self) -> bool:
        """Tell whether a live worker that should take turns receives none; a new one is given time to start."""
        if self.status != "alive" or self.draining or (self.uptime_seconds or 0) < WORKER_START_SECONDS:
            return False
        if self.beat_age_seconds is None:  # it answers Celery, but its engine sends no heartbeat
            return "turns" in self.queues
        return not self.queues


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that findings are derived from, read once."""

    summary: Summary
    ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ids of some conditions, oldest first
    workers: tuple[Worker, ...] | None = None
    leases_without_turn: tuple[str, ...] | None = None
    longest_stream: int | None = None
    streams_without_life: int | None = None
    database_takes_writes: bool | None = None
    reaper_silent_seconds: float | None = None
    reaper_never_looked: bool | None = None  # or Redis lost the record
    reaper_blind: bool | None = None
    scheduler_silent_seconds: float | None = None
    # By queue, since its last task was done.
    queue_silent_seconds: Mapping[str, float] = field(default_factory=dict)
    database_skew_seconds: float | None = None  # this host's clock against the server's
    redis_skew_seconds: float | None = None
    eviction_policy: str | None = None
    orphaned_schedules: int | None = None
    update_backlog: int | None = None
    delivery_backlog: int | None = None
    queue_depths: tuple[float, ...] = ()  # of the last minutes, newest last
    dependencies_down: tuple[str, ...] = ()
