"""From figures to findings: a rule each, pure (D12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from diagnostics.findings.figures import Snapshot
from diagnostics.findings.meanings import meaning
from diagnostics.thresholds import QUEUE_SILENT_SECONDS, SCHEDULER_SILENT_SECONDS, TASKS_WAITING

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    code: str
    severity: Severity
    title: str
    why: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    ids: tuple[str, ...] = ()  # at most twenty
    suggested_action: str = ""


MOST_IDS = 20
GRAVITY: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}
MOST_WAIT_MS = 10_000.0
MOST_SKEW_SECONDS = 2.0
REAPER_SILENT_SECONDS = 30.0
STREAM_EVENTS = 50_000  # a log is cut at 20,000 and lives a day
BACKLOG = 100  # updates or deliveries that wait
SAMPLES_RISING = 5
SPIKE_FACTOR, SPIKE_FAILURES = 3, 10

Rule = Callable[[Snapshot], Finding | None]


def evaluate(snapshot: Snapshot) -> list[Finding]:
    """Ordered by severity, then as the rules stand; what could not be read gives no finding but its own."""
    found = [
        *_dependencies(snapshot),
        *_queues_silent(snapshot),
        *(finding for rule in RULES if (finding := rule(snapshot))),
    ]
    explained = [replace(finding, why=meaning(finding.code)) for finding in found]
    return sorted(explained, key=lambda finding: GRAVITY[finding.severity])


def _some(number: float | None) -> float:
    return number or 0


def _ids(snapshot: Snapshot, *conditions: str) -> tuple[str, ...]:
    return tuple(one for name in conditions for one in snapshot.ids.get(name, ()))[:MOST_IDS]


def _dependencies(snapshot: Snapshot) -> Iterable[Finding]:
    for name in snapshot.dependencies_down:
        yield Finding(
            code=f"dependency_down:{name}",
            severity="critical",
            title=f"{name.capitalize()} does not answer",
            suggested_action="Bring it back; `manage.py doctor` says what is wrong with it. Repair nothing before.",
        )


def _database_read_only(snapshot: Snapshot) -> Finding | None:
    if snapshot.database_takes_writes is not False:
        return None
    return Finding(
        code="database_read_only",
        severity="critical",
        title="Postgres takes no writes",
        suggested_action="Point DATABASE_URL at the primary, or end its read-only mode. Repairs wait until then.",
    )


def _orphans(snapshot: Snapshot) -> Finding | None:
    running, queued = _some(snapshot.summary.orphaned_running), _some(snapshot.summary.orphaned_queued)
    if not running + queued:
        return None
    return Finding(
        code="orphans",
        severity="critical",
        title="Executions that nobody runs any more",
        numbers={"orphaned_running": running, "orphaned_queued": queued},
        ids=_ids(snapshot, "orphaned_running", "orphaned_queued"),
        suggested_action="Wait for the reaper if it lives; else clean them up in the tab Orphaned.",
    )


def _stuck_queue(snapshot: Snapshot) -> Finding | None:
    stuck = _some(snapshot.summary.stuck_queued)
    if not stuck:
        return None
    return Finding(
        code="stuck_queue",
        severity="warning",
        title="Executions that wait for a worker for too long",
        numbers={"stuck_queued": stuck, "oldest_seconds": _some(snapshot.summary.oldest_queued_seconds)},
        ids=_ids(snapshot, "stuck_queued"),
        suggested_action="Start workers of the queue `turns`, then requeue what is stuck.",
    )


def _no_workers(snapshot: Snapshot) -> Finding | None:
    if "redis" in snapshot.dependencies_down:
        return None  # without it nobody hears of turns, and that is told already
    if snapshot.workers is None or any(
        worker.status == "alive" and not worker.draining and not worker.is_deaf and "turns" in worker.queues
        for worker in snapshot.workers
    ):
        return None
    return Finding(
        code="no_workers",
        severity="critical",
        title="No worker takes turns",
        numbers={"queued": _some(snapshot.summary.queued)},
        suggested_action="Start a worker of the queue `turns` (see deploy/systemd).",
    )


def _deaf_workers(snapshot: Snapshot) -> Finding | None:
    deaf = [worker.id for worker in snapshot.workers or () if worker.is_deaf]
    if not deaf or "redis" in snapshot.dependencies_down:
        return None
    return Finding(
        code="deaf_workers",
        severity="critical",
        title="Workers that live and take no turns",
        numbers={"workers": len(deaf)},
        ids=tuple(deaf[:MOST_IDS]),
        suggested_action="They exit and are restarted within a minute. If they stay, restart them yourself.",
    )


def _queues_silent(snapshot: Snapshot) -> Iterable[Finding]:
    """Only while the scheduler sends: without it every queue is quiet."""
    if snapshot.scheduler_silent_seconds is None or _scheduler_silent(snapshot) is not None:
        return
    for queue, silent in snapshot.queue_silent_seconds.items():
        if silent > QUEUE_SILENT_SECONDS.get(queue, float("inf")):
            yield Finding(
                code=f"queue_silent:{queue}",
                severity="critical",
                title=f"Nobody works on the queue `{queue}`",
                numbers={"silent_seconds": silent},
                suggested_action=f"Start or restart a worker of the queue `{queue}` (see deploy/systemd).",
            )


def _task_backlog(snapshot: Snapshot) -> Finding | None:
    depths = snapshot.summary.broker_depth or {}
    waiting = {queue: depths[queue] for queue, most in TASKS_WAITING.items() if depths.get(queue, 0) > most}
    if not waiting:
        return None
    return Finding(
        code="task_backlog",
        severity="warning",
        title=f"Tasks wait in the broker: {', '.join(waiting)}",
        numbers=waiting,
        suggested_action="Is a worker of each queue alive (tab Workers)? If so, add one.",
    )


def _queue_growing(snapshot: Snapshot) -> Finding | None:
    last = snapshot.queue_depths[-SAMPLES_RISING:]
    rising = all(earlier < later for earlier, later in pairwise(last))
    if len(last) < SAMPLES_RISING or not rising:
        return None
    return Finding(
        code="queue_growing",
        severity="warning",
        title="The queue grows from minute to minute",
        numbers={"from": last[0], "to": last[-1]},
        suggested_action="Add workers, or look at what slows them down.",
    )


def _failure_spike(snapshot: Snapshot) -> Finding | None:
    now, usual = snapshot.summary.failure_ratio_1h, snapshot.summary.failure_ratio_24h
    failed = _some(snapshot.summary.failed_1h)
    if now is None or usual is None or failed < SPIKE_FAILURES or now <= SPIKE_FACTOR * usual:
        return None
    return Finding(
        code="failure_spike",
        severity="critical",
        title="Far more executions fail than usual",
        numbers={"failure_ratio_1h": now, "failure_ratio_24h": usual, "failed_1h": failed},
        ids=_ids(snapshot, "failed"),
        suggested_action="Look at the codes in the tab Failed.",
    )


def _slow_start(snapshot: Snapshot) -> Finding | None:
    wait = snapshot.summary.queue_wait_p95_ms
    if wait is None or wait <= MOST_WAIT_MS:
        return None
    return Finding(
        code="slow_start",
        severity="warning",
        title="Executions wait long for a worker",
        numbers={"queue_wait_p95_ms": wait},
        suggested_action="Add workers, or raise TURNS_PER_PROCESS.",
    )


def _cancel_backlog(snapshot: Snapshot) -> Finding | None:
    backlog = _some(snapshot.summary.cancel_backlog)
    if not backlog:
        return None
    return Finding(
        code="cancel_backlog",
        severity="warning",
        title="Stops that were accepted and not carried out",
        numbers={"cancel_backlog": backlog},
        ids=_ids(snapshot, "cancel_backlog"),
        suggested_action="Is the reaper alive? It overrides workers that do not obey.",
    )


def _long_running(snapshot: Snapshot) -> Finding | None:
    hour, day = _some(snapshot.summary.long_running_1h), _some(snapshot.summary.long_running_24h)
    if not hour:
        return None
    return Finding(
        code="long_running",
        severity="warning" if day else "info",
        title="Executions that run longer than a turn may",
        numbers={"long_running_1h": hour, "long_running_24h": day},
        ids=_ids(snapshot, "long_running", "long_running_1h"),
        suggested_action="A limit has failed: look at the turn, then stop it.",
    )


def _invalid_state(snapshot: Snapshot) -> Finding | None:
    invalid = _some(snapshot.summary.invalid_total)
    if not invalid:
        return None
    return Finding(
        code="invalid_state",
        severity="critical",
        title="Rows that contradict themselves",
        numbers={"invalid_total": invalid},
        ids=_ids(snapshot, "invalid"),
        suggested_action="They are not repaired here: read the turn's page and its logs.",
    )


def _lease_without_turn(snapshot: Snapshot) -> Finding | None:
    leases = snapshot.leases_without_turn
    if not leases:
        return None
    return Finding(
        code="lease_without_turn",
        severity="warning",
        title="Sessions held for turns that are over",
        numbers={"leases": len(leases)},
        ids=leases[:MOST_IDS],
        suggested_action="The reaper removes them within a minute; is it alive?",
    )


def _stranded_pending(snapshot: Snapshot) -> Finding | None:
    stranded = _some(snapshot.summary.stranded_sessions)
    if not stranded:
        return None
    return Finding(
        code="stranded_pending",
        severity="warning",
        title="Messages that wait although nothing runs",
        numbers={"stranded_sessions": stranded},
        ids=_ids(snapshot, "stranded_pending"),
        suggested_action="The reaper starts a turn for them; is it alive? If they stay, start one by hand.",
    )


def _stream_bloat(snapshot: Snapshot) -> Finding | None:
    longest, endless = _some(snapshot.longest_stream), _some(snapshot.streams_without_life)
    if longest <= STREAM_EVENTS and not endless:
        return None
    return Finding(
        code="stream_bloat",
        severity="warning",
        title="Event logs that are not cut or never expire",
        numbers={"longest": longest, "without_life": endless},
        suggested_action="Look at /api/v1/admin/diagnostics/streams; EVENT_LOG_LENGTH and EVENT_LOG_SECONDS bound them.",
    )


def _reaper_blind(snapshot: Snapshot) -> Finding | None:
    if not snapshot.reaper_blind:
        return None
    return Finding(
        code="reaper_blind",
        severity="critical",
        title="The reaper cannot see, and judges nobody",
        suggested_action="Bring back the server that does not answer; nothing is lost meanwhile.",
    )


def _reaper_silent(snapshot: Snapshot) -> Finding | None:
    silent = snapshot.reaper_silent_seconds
    if not snapshot.reaper_never_looked and (silent is None or silent <= REAPER_SILENT_SECONDS):
        return None
    return Finding(
        code="reaper_silent",
        severity="critical",
        title="Nobody looks for dead executions",
        numbers={} if silent is None else {"silent_seconds": silent},
        suggested_action="Start a worker of the queue `maintenance` or `turns`: one of them looks.",
    )


def _scheduler_silent(snapshot: Snapshot) -> Finding | None:
    silent = snapshot.scheduler_silent_seconds
    if silent is None or silent <= SCHEDULER_SILENT_SECONDS:
        return None
    return Finding(
        code="scheduler_silent",
        severity="critical",
        title="The clock of scheduled tasks does not tick",
        numbers={"silent_seconds": silent},
        suggested_action="Start `celery beat` (see deploy/systemd).",
    )


def _mixed_versions(snapshot: Snapshot) -> Finding | None:
    alive = [worker for worker in snapshot.workers or () if worker.status == "alive" and worker.version]
    versions = {worker.version for worker in alive}
    if len(versions) < 2:
        return None
    return Finding(
        code="mixed_versions",
        severity="info",
        title=f"Workers of different versions: {', '.join(sorted(versions))}",
        numbers={"versions": len(versions)},
        suggested_action="Finish the deploy.",
    )


def _clock_skew(snapshot: Snapshot) -> Finding | None:
    against = {"Postgres": snapshot.database_skew_seconds, "Redis": snapshot.redis_skew_seconds}
    wrong = {name: skew for name, skew in against.items() if abs(_some(skew)) > MOST_SKEW_SECONDS}
    if not wrong:
        return None
    return Finding(
        code="clock_skew",
        severity="warning",
        title=f"The clocks of this host and of {' and '.join(wrong)} differ",
        numbers={f"{name.lower()}_skew_seconds": abs(_some(skew)) for name, skew in wrong.items()},
        suggested_action="Run NTP on every host.",
    )


def _redis_eviction(snapshot: Snapshot) -> Finding | None:
    if snapshot.eviction_policy in (None, "noeviction"):
        return None
    return Finding(
        code="redis_eviction",
        severity="critical",
        title=f"Redis may throw away what it holds ({snapshot.eviction_policy})",
        suggested_action="Set maxmemory-policy to noeviction.",
    )


def _orphaned_schedules(snapshot: Snapshot) -> Finding | None:
    orphaned = _some(snapshot.orphaned_schedules)
    if not orphaned:
        return None
    return Finding(
        code="orphaned_schedules",
        severity="warning",
        title="Schedules that can no longer run",
        numbers={"orphaned_schedules": orphaned},
        suggested_action="Switch them off in the tab Orphaned schedules.",
    )


def _update_backlog(snapshot: Snapshot) -> Finding | None:
    waiting = _some(snapshot.update_backlog)
    if waiting < BACKLOG:
        return None
    return Finding(
        code="update_backlog",
        severity="warning",
        title="Updates of chat platforms wait",
        numbers={"update_backlog": waiting},
        suggested_action="Are the bot runners and a worker of the queue `chats` alive?",
    )


def _delivery_backlog(snapshot: Snapshot) -> Finding | None:
    waiting = _some(snapshot.delivery_backlog)
    if waiting < BACKLOG:
        return None
    return Finding(
        code="delivery_backlog",
        severity="warning",
        title="Answers to chat platforms wait",
        numbers={"delivery_backlog": waiting},
        suggested_action="Look at the platforms' doors: limits, or credentials that were revoked.",
    )


RULES: tuple[Rule, ...] = (  # causes before what comes of them
    _database_read_only,
    _no_workers,
    _deaf_workers,
    _reaper_blind,
    _reaper_silent,
    _scheduler_silent,
    _redis_eviction,
    _orphans,
    _invalid_state,
    _failure_spike,
    _stuck_queue,
    _task_backlog,
    _queue_growing,
    _slow_start,
    _cancel_backlog,
    _stranded_pending,
    _lease_without_turn,
    _stream_bloat,
    _clock_skew,
    _orphaned_schedules,
    _update_backlog,
    _delivery_backlog,
    _long_running,
    _mixed_versions,
)
