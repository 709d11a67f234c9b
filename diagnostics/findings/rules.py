"""Derive findings from figures, and explain each of them to the person on call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from diagnostics.findings.figures import Snapshot
from diagnostics.work_ages import MAX_WAITING_TASKS, QUEUE_SILENT_SECONDS, SCHEDULER_SILENT_SECONDS

FINDING_EXPLANATIONS: Mapping[str, str] = {
    "dependency_down:postgres": "All data is in Postgres. Nobody can send messages, and running turns keep what they have until it is back.",
    "dependency_down:redis": "Redis holds leases, queues and live text. Chats stand still, but nothing accepted is lost: it is stored in Postgres.",
    "dependency_down:broker": "Tasks go through the broker. New turns are accepted, and start once it is back.",
    "database_read_only": "The server is a standby or set to read only: pages can be read, but nothing can be sent, saved or repaired.",
    "orphans": "Their worker died, or their task was lost for a day; their owners see an answer that does not continue.",
    "stuck_queue": "No worker took them within the hour: there are too few, none at all, or their tasks were lost.",
    "no_workers": "No worker of the queue `turns` is alive, so nobody gets an answer.",
    "deaf_workers": "They run and send heartbeats, but receive no messages, so turns have to wait for other workers.",
    "queue_silent": "The scheduler sends to it every few seconds, but no task was done for a while: its worker is stopped, stuck or receives no messages.",
    "task_backlog": "Tasks arrive faster than they are done. Scheduled jobs expire, and people wait longer.",
    "queue_growing": "More turns arrive than workers finish, for five minutes in a row.",
    "failure_spike": "Usually a provider in trouble, a key that was revoked, or a release that broke something.",
    "slow_start": "People wait this long for the first token because all workers are busy.",
    "cancel_backlog": "Their workers hang, and have not been overridden yet.",
    "long_running": "The time limit of a turn should have ended them. They still send heartbeats, so they are not dead.",
    "invalid_state": "A defect or a manual change in the database. Nothing repairs these rows automatically.",
    "lease_without_turn": "A process died between ending a turn and releasing its lease. New messages there have to wait.",
    "stranded_pending": "A process died between ending a turn and starting the next. People are waiting for an answer.",
    "stream_bloat": "They fill the memory of Redis.",
    "reaper_blind": "The reaper needs Postgres and Redis to judge workers, and one of them does not answer.",
    "reaper_silent": "Until it sweeps again, turns of dead workers are not taken over and stops are not enforced. Any worker of `maintenance` or `turns` can be the reaper.",
    "scheduler_silent": "Scheduled tasks, deliveries, mails and clean-ups do not run.",
    "redis_eviction": "When its memory is full, leases and queues are lost, and turns with them.",
    "clock_skew": "Ages and expiry times from different clocks contradict each other.",
    "orphaned_schedules": "Their agent, owner or credential is gone, or their time is no longer valid: every run would fail.",
    "update_backlog": "Messages from chat platforms have not been handled yet.",
    "delivery_backlog": "Answers are ready but have not reached their chats.",
    "mixed_versions": "A deploy that is not finished, or a worker that was forgotten.",
}  # fmt: skip


def explain_finding(code: str) -> str:
    return FINDING_EXPLANATIONS.get(code) or FINDING_EXPLANATIONS.get(code.partition(":")[0], "")


# --- Rules ---

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


MAX_FINDING_IDS = 20
SEVERITY_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}
MAX_QUEUE_WAIT_MS = 10_000.0
MAX_SKEW_SECONDS = 2.0
REAPER_SILENT_SECONDS = 30.0
MAX_STREAM_EVENTS = 50_000  # a log is cut at 20,000 and lives a day
BACKLOG_THRESHOLD = 100  # waiting updates or deliveries
RISING_SAMPLES = 5
SPIKE_FACTOR, SPIKE_FAILURES = 3, 10

FindingRule = Callable[[Snapshot], Finding | None]


def evaluate_findings(snapshot: Snapshot) -> list[Finding]:
    """Return findings by severity, then in the order of the rules; unreadable sources cause no other findings."""
    found = [
        *_check_dependencies(snapshot),
        *_check_silent_queues(snapshot),
        *(finding for rule in FINDING_RULES if (finding := rule(snapshot))),
    ]
    explained = [replace(finding, why=explain_finding(finding.code)) for finding in found]
    return sorted(explained, key=lambda finding: SEVERITY_ORDER[finding.severity])


def _or_zero(number: float | None) -> float:
    return number or 0


def _collect_ids(snapshot: Snapshot, *conditions: str) -> tuple[str, ...]:
    return tuple(target_id for name in conditions for target_id in snapshot.ids.get(name, ()))[
        :MAX_FINDING_IDS
    ]


def _check_dependencies(snapshot: Snapshot) -> Iterable[Finding]:
    for name in snapshot.dependencies_down:
        yield Finding(
            code=f"dependency_down:{name}",
            severity="critical",
            title=f"{name.capitalize()} does not answer",
            suggested_action="Bring it back first; `manage.py doctor` says what is wrong. Repair nothing before that.",
        )


def _check_database_read_only(snapshot: Snapshot) -> Finding | None:
    if snapshot.database_takes_writes is not False:
        return None
    return Finding(
        code="database_read_only",
        severity="critical",
        title="Postgres is read-only",
        suggested_action="Point DATABASE_URL at the primary, or end its read-only mode. Repairs wait until then.",
    )


def _check_orphans(snapshot: Snapshot) -> Finding | None:
    running, queued = _or_zero(snapshot.summary.orphaned_running), _or_zero(snapshot.summary.orphaned_queued)
    if not running + queued:
        return None
    return Finding(
        code="orphans",
        severity="critical",
        title="Orphaned executions",
        numbers={"orphaned_running": running, "orphaned_queued": queued},
        ids=_collect_ids(snapshot, "orphaned_running", "orphaned_queued"),
        suggested_action="Wait for the reaper if it is alive; otherwise end them in the tab Orphaned.",
    )


def _check_stuck_queue(snapshot: Snapshot) -> Finding | None:
    stuck = _or_zero(snapshot.summary.stuck_queued)
    if not stuck:
        return None
    return Finding(
        code="stuck_queue",
        severity="warning",
        title="Executions stuck in the queue",
        numbers={"stuck_queued": stuck, "oldest_seconds": _or_zero(snapshot.summary.oldest_queued_seconds)},
        ids=_collect_ids(snapshot, "stuck_queued"),
        suggested_action="Start workers of the queue `turns`, then requeue what is stuck.",
    )


def _check_no_workers(snapshot: Snapshot) -> Finding | None:
    if "redis" in snapshot.dependencies_down:
        return None  # without Redis no worker receives turns, and that has its own finding
    if snapshot.workers is None or any(
        worker.status == "alive" and not worker.draining and not worker.is_deaf and "turns" in worker.queues
        for worker in snapshot.workers
    ):
        return None
    return Finding(
        code="no_workers",
        severity="critical",
        title="No worker takes turns",
        numbers={"queued": _or_zero(snapshot.summary.queued)},
        suggested_action="Start a worker of the queue `turns` (see deploy/systemd).",
    )


def _check_deaf_workers(snapshot: Snapshot) -> Finding | None:
    deaf = [worker.id for worker in snapshot.workers or () if worker.is_deaf]
    if not deaf or "redis" in snapshot.dependencies_down:
        return None
    return Finding(
        code="deaf_workers",
        severity="critical",
        title="Workers that receive no turns",
        numbers={"workers": len(deaf)},
        ids=tuple(deaf[:MAX_FINDING_IDS]),
        suggested_action="They exit and restart within a minute. If they stay, restart them yourself.",
    )


def _check_silent_queues(snapshot: Snapshot) -> Iterable[Finding]:
    """Check queues only while the scheduler sends; without it every queue is silent."""
    if snapshot.scheduler_silent_seconds is None or _check_scheduler_silent(snapshot) is not None:
        return
    for queue, silent in snapshot.queue_silent_seconds.items():
        if silent > QUEUE_SILENT_SECONDS.get(queue, float("inf")):
            yield Finding(
                code=f"queue_silent:{queue}",
                severity="critical",
                title=f"No worker serves the queue `{queue}`",
                numbers={"silent_seconds": silent},
                suggested_action=f"Start or restart a worker of the queue `{queue}` (see deploy/systemd).",
            )


def _check_task_backlog(snapshot: Snapshot) -> Finding | None:
    depths = snapshot.summary.broker_depth or {}
    waiting = {
        queue: depths[queue] for queue, most in MAX_WAITING_TASKS.items() if depths.get(queue, 0) > most
    }
    if not waiting:
        return None
    return Finding(
        code="task_backlog",
        severity="warning",
        title=f"Task backlog in the broker: {', '.join(waiting)}",
        numbers=waiting,
        suggested_action="Check in the tab Workers that each queue has a live worker. If so, add one.",
    )


def _check_queue_growing(snapshot: Snapshot) -> Finding | None:
    last = snapshot.queue_depths[-RISING_SAMPLES:]
    rising = all(earlier < later for earlier, later in pairwise(last))
    if len(last) < RISING_SAMPLES or not rising:
        return None
    return Finding(
        code="queue_growing",
        severity="warning",
        title="The queue keeps growing",
        numbers={"from": last[0], "to": last[-1]},
        suggested_action="Add workers, or look at what slows them down.",
    )


def _check_failure_spike(snapshot: Snapshot) -> Finding | None:
    now, usual = snapshot.summary.failure_ratio_1h, snapshot.summary.failure_ratio_24h
    failed = _or_zero(snapshot.summary.failed_1h)
    if now is None or usual is None or failed < SPIKE_FAILURES or now <= SPIKE_FACTOR * usual:
        return None
    return Finding(
        code="failure_spike",
        severity="critical",
        title="Far more executions fail than usual",
        numbers={"failure_ratio_1h": now, "failure_ratio_24h": usual, "failed_1h": failed},
        ids=_collect_ids(snapshot, "failed"),
        suggested_action="Check the failure codes in the tab Failed.",
    )


def _check_slow_start(snapshot: Snapshot) -> Finding | None:
    wait = snapshot.summary.queue_wait_p95_ms
    if wait is None or wait <= MAX_QUEUE_WAIT_MS:
        return None
    return Finding(
        code="slow_start",
        severity="warning",
        title="Executions wait too long for a worker",
        numbers={"queue_wait_p95_ms": wait},
        suggested_action="Add workers, or raise TURNS_PER_PROCESS.",
    )


def _check_cancel_backlog(snapshot: Snapshot) -> Finding | None:
    backlog = _or_zero(snapshot.summary.cancel_backlog)
    if not backlog:
        return None
    return Finding(
        code="cancel_backlog",
        severity="warning",
        title="Stops overdue",
        numbers={"cancel_backlog": backlog},
        ids=_collect_ids(snapshot, "cancel_backlog"),
        suggested_action="Check that the reaper is alive: it overrides workers that do not stop.",
    )


def _check_long_running(snapshot: Snapshot) -> Finding | None:
    hour, day = _or_zero(snapshot.summary.long_running_1h), _or_zero(snapshot.summary.long_running_24h)
    if not hour:
        return None
    return Finding(
        code="long_running",
        severity="warning" if day else "info",
        title="Executions run longer than allowed",
        numbers={"long_running_1h": hour, "long_running_24h": day},
        ids=_collect_ids(snapshot, "long_running", "long_running_1h"),
        suggested_action="A limit failed: check the turn, then stop it.",
    )


def _check_invalid_state(snapshot: Snapshot) -> Finding | None:
    invalid = _or_zero(snapshot.summary.invalid_total)
    if not invalid:
        return None
    return Finding(
        code="invalid_state",
        severity="critical",
        title="Rows that contradict themselves",
        numbers={"invalid_total": invalid},
        ids=_collect_ids(snapshot, "invalid"),
        suggested_action="Nothing repairs them automatically: check the turn's page and its logs.",
    )


def _check_lease_without_turn(snapshot: Snapshot) -> Finding | None:
    leases = snapshot.leases_without_turn
    if not leases:
        return None
    return Finding(
        code="lease_without_turn",
        severity="warning",
        title="Leases held for ended turns",
        numbers={"leases": len(leases)},
        ids=leases[:MAX_FINDING_IDS],
        suggested_action="The reaper removes them within a minute. If they stay, check that it is alive.",
    )


def _check_stranded_pending(snapshot: Snapshot) -> Finding | None:
    stranded = _or_zero(snapshot.summary.stranded_sessions)
    if not stranded:
        return None
    return Finding(
        code="stranded_pending",
        severity="warning",
        title="Messages wait although nothing runs",
        numbers={"stranded_sessions": stranded},
        ids=_collect_ids(snapshot, "stranded_pending"),
        suggested_action="The reaper starts a turn for them. If they stay, check that it is alive, or start one by hand.",
    )


def _check_stream_bloat(snapshot: Snapshot) -> Finding | None:
    longest, endless = _or_zero(snapshot.longest_stream), _or_zero(snapshot.streams_without_life)
    if longest <= MAX_STREAM_EVENTS and not endless:
        return None
    return Finding(
        code="stream_bloat",
        severity="warning",
        title="Event logs that are not trimmed or never expire",
        numbers={"longest": longest, "without_life": endless},
        suggested_action="Check /api/v1/admin/diagnostics/streams; a log ends after 20,000 events, and EVENT_LOG_SECONDS after the last one.",
    )


def _check_reaper_blind(snapshot: Snapshot) -> Finding | None:
    if not snapshot.reaper_blind:
        return None
    return Finding(
        code="reaper_blind",
        severity="critical",
        title="The reaper cannot judge workers",
        suggested_action="Bring back the server that does not answer. Nothing is lost meanwhile.",
    )


def _check_reaper_silent(snapshot: Snapshot) -> Finding | None:
    silent = snapshot.reaper_silent_seconds
    if not snapshot.reaper_never_looked and (silent is None or silent <= REAPER_SILENT_SECONDS):
        return None
    return Finding(
        code="reaper_silent",
        severity="critical",
        title="The reaper is not running",
        numbers={} if silent is None else {"silent_seconds": silent},
        suggested_action="Start a worker of the queue `maintenance` or `turns`: one of them runs the reaper.",
    )


def _check_scheduler_silent(snapshot: Snapshot) -> Finding | None:
    silent = snapshot.scheduler_silent_seconds
    if silent is None or silent <= SCHEDULER_SILENT_SECONDS:
        return None
    return Finding(
        code="scheduler_silent",
        severity="critical",
        title="The scheduler is not running",
        numbers={"silent_seconds": silent},
        suggested_action="Start `celery beat` (see deploy/systemd).",
    )


def _check_mixed_versions(snapshot: Snapshot) -> Finding | None:
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


def _check_clock_skew(snapshot: Snapshot) -> Finding | None:
    against = {"Postgres": snapshot.database_skew_seconds, "Redis": snapshot.redis_skew_seconds}
    wrong = {name: skew for name, skew in against.items() if abs(_or_zero(skew)) > MAX_SKEW_SECONDS}
    if not wrong:
        return None
    return Finding(
        code="clock_skew",
        severity="warning",
        title=f"The clocks of this host and of {' and '.join(wrong)} differ",
        numbers={f"{name.lower()}_skew_seconds": abs(_or_zero(skew)) for name, skew in wrong.items()},
        suggested_action="Run NTP on every host.",
    )


def _check_redis_eviction(snapshot: Snapshot) -> Finding | None:
    if snapshot.eviction_policy in (None, "noeviction"):
        return None
    return Finding(
        code="redis_eviction",
        severity="critical",
        title=f"Redis may evict data ({snapshot.eviction_policy})",
        suggested_action="Set maxmemory-policy to noeviction.",
    )


def _check_orphaned_schedules(snapshot: Snapshot) -> Finding | None:
    orphaned = _or_zero(snapshot.orphaned_schedules)
    if not orphaned:
        return None
    return Finding(
        code="orphaned_schedules",
        severity="warning",
        title="Schedules that can no longer run",
        numbers={"orphaned_schedules": orphaned},
        suggested_action="Switch them off in the tab Orphaned schedules.",
    )


def _check_update_backlog(snapshot: Snapshot) -> Finding | None:
    waiting = _or_zero(snapshot.update_backlog)
    if waiting < BACKLOG_THRESHOLD:
        return None
    return Finding(
        code="update_backlog",
        severity="warning",
        title="Chat-platform updates are waiting",
        numbers={"update_backlog": waiting},
        suggested_action="Check that the bot runners and a worker of the queue `chats` are alive.",
    )


def _check_delivery_backlog(snapshot: Snapshot) -> Finding | None:
    waiting = _or_zero(snapshot.delivery_backlog)
    if waiting < BACKLOG_THRESHOLD:
        return None
    return Finding(
        code="delivery_backlog",
        severity="warning",
        title="Answers to chat platforms are waiting",
        numbers={"delivery_backlog": waiting},
        suggested_action="Check the platforms for rate limits or revoked credentials.",
    )


FINDING_RULES: tuple[FindingRule, ...] = (  # causes before their consequences
    _check_database_read_only,
    _check_no_workers,
    _check_deaf_workers,
    _check_reaper_blind,
    _check_reaper_silent,
    _check_scheduler_silent,
    _check_redis_eviction,
    _check_orphans,
    _check_invalid_state,
    _check_failure_spike,
    _check_stuck_queue,
    _check_task_backlog,
    _check_queue_growing,
    _check_slow_start,
    _check_cancel_backlog,
    _check_stranded_pending,
    _check_lease_without_turn,
    _check_stream_bloat,
    _check_clock_skew,
    _check_orphaned_schedules,
    _check_update_backlog,
    _check_delivery_backlog,
    _check_long_running,
    _check_mixed_versions,
)
