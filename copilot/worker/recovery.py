"""Recover turns whose worker died, whose task was lost or whose session Redis forgot.

The reaper in diagnostics decides when to sweep. Every repair is one conditional update, so two sweeps at once do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from billing import redis_counters
from billing.errors import CountersUnavailable
from billing.usage import limit_checks
from config.core.db import fetch_all
from config.core.errors import TurnConflict
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics, tasks
from copilot.chat import (
    announcements,
    approvals,
    follow_ups,
    messages,
    model_calls,
    next_turn,
    paused_turns,
    turn_selectors,
    turn_transitions,
    turns,
)
from copilot.chat import selectors as chat_selectors
from copilot.models import Schedule, Session, Turn
from copilot.realtime import event_log, lease, session_keys
from copilot.realtime.events import (
    TurnCancelled,
    TurnEnding,
    TurnFailed,
    TurnRecovering,
    TurnSucceeded,
    TurnSummary,
)
from copilot.schedules import runner
from copilot.schedules import services as schedules
from copilot.worker import database_restores, heartbeat, liveness

log = structlog.get_logger(__name__)

STOP_OVERRIDE_SECONDS = 5  # a turn that has not obeyed a stop by then is ended without its worker
QUEUED_TOO_LONG_SECONDS = 30.0  # by then a turn's wake-up may be lost, and is sent again
APPROVAL_LIFETIME_SECONDS = 7 * 24 * 3600.0  # then the request expires
STRANDED_AGE_SECONDS = 10
THROTTLED_RETRY_SECONDS = (
    2  # an ending turn wakes throttled ones within milliseconds; this covers lost wake-ups
)
STOP_OVERRIDE_AGE = timedelta(seconds=STOP_OVERRIDE_SECONDS)
REGULAR_LOOKBACK = timedelta(minutes=5)  # how far back unrecorded model calls are looked for
FIRST_LOOKBACK = timedelta(days=1)  # the same, for the first sweep of a process
ENDING_LOOKBACK = timedelta(minutes=2)  # how far back unpublished endings are looked for
SWEEP_OUTAGE_ERRORS = REDIS_OUTAGE_ERRORS
LOST_WORKER_RESULT = "Interrupted, outcome unknown: the worker was lost while this ran."

REPAIR_STEP_SECONDS = 1.0  # for one kind of repair in one sweep: the rest waits for the next sweep
REPAIR_STEP_ITEMS = 200

T = TypeVar("T")


# --- Recording repairs -------------------------------------------------------------------------------

RepairAction = Literal[
    "take_over", "override_stop", "send_again", "expire", "start_stranded", "deliver_result", "restore"
]


@dataclass(frozen=True, kw_only=True)
class RepairRecord:
    """A repaired turn or session, with its status and fence before the repair."""

    act: RepairAction
    id: UUID
    status: str
    fence: int


_collected_repairs: ContextVar[list[RepairRecord] | None] = ContextVar("collected_repairs", default=None)


@contextmanager
def collect_repairs() -> Iterator[list[RepairRecord]]:
    """Collect the repairs made inside the block, for the audit log that diagnostics keeps."""
    collected: list[RepairRecord] = []
    token = _collected_repairs.set(collected)
    try:
        yield collected
    finally:
        _collected_repairs.reset(token)


def record_repair(act: RepairAction, identifier: UUID, *, status: str, fence: int = 0) -> None:
    collected = _collected_repairs.get()
    if collected is not None:
        collected.append(RepairRecord(act=act, id=identifier, status=status, fence=fence))


def repair_each(
    items: Iterable[T], repair: Callable[[T], object], *, seconds: float = REPAIR_STEP_SECONDS
) -> int:
    """Repair one item after the other until the time is up; return how many were repaired. One failure stops no other."""
    repaired, deadline = 0, time.monotonic() + seconds
    for item in islice(items, REPAIR_STEP_ITEMS):
        try:
            repaired += bool(repair(item))
        except (OperationalError, InterfaceError, *REDIS_OUTAGE_ERRORS):
            raise  # Postgres or Redis is down: no other item can be repaired either
        except Exception:
            log.exception("repair_failed", repair=repair.__name__)
        if time.monotonic() > deadline:
            break
    return repaired


def record_sweep(*, blind: bool = False) -> None:
    heartbeat.write_sweep(blind=blind)


# --- Turns of dead workers ---------------------------------------------------------------------------


def take_over_turn(suspect: liveness.TurnEvidence) -> bool:
    """Requeue a dead worker's turn, or end it when it was stopped or lost too often; False when another sweep was first."""
    turn_id, session_id = UUID(suspect.turn_id), UUID(suspect.session_id)
    requeued = turn_transitions.requeue_turn(turn_id, suspect.fence, lost=True)
    if requeued is None:
        return False
    record_repair("take_over", turn_id, status=turns.RUNNING, fence=suspect.fence)
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    _raise_fence_in_redis(turn, requeued.fence)
    decision = "cancelled" if suspect.stopped else "failed" if requeued.has_no_attempts_left else "continued"
    metrics.turn_recoveries.labels(decision).inc()
    if suspect.stopped or requeued.has_no_attempts_left:
        _publish_lost_state(turn)
        end = _cancel_turn if suspect.stopped else _fail_as_worker_lost
        end(turn, requeued.fence)
    else:
        try:
            _publish_lost_state(turn)
            event = TurnRecovering(attempt=requeued.attempts)
            announcements.publish_events(session_id, turn.session.owner_id, [(event, suspect.turn_id)])
        finally:  # the turn continues even if clients could not be told
            tasks.wake_worker(turn_id)
    log.warning(
        "turn_taken_over",
        turn_id=suspect.turn_id,
        session_id=suspect.session_id,
        lost_worker=suspect.worker,
        attempt=requeued.attempts,
        decision=decision,
    )
    return True


def _publish_lost_state(turn: Turn) -> None:
    model_calls.record_lost_calls(turn.pk)
    announcements.publish_snapshot(turn.session_id)


def _raise_fence_in_redis(turn: Turn, fence: int) -> None:
    try:
        lease.take_over_lease(str(turn.session_id), turn_id=str(turn.pk), token=str(turn.token), fence=fence)
    except REDIS_OUTAGE_ERRORS:
        log.warning("fence_not_raised_in_redis", session_id=str(turn.session_id), fence=fence)


def _cancel_turn(turn: Turn, fence: int, *, override: bool = False) -> bool:
    try:
        ended = turn_transitions.end_turn(turn.pk, fence, turns.CANCELLED, reason="user", override=override)
    except TurnConflict:
        return False
    if override:
        _raise_fence_in_redis(turn, fence + 1)
        announcements.publish_snapshot(turn.session_id)
    announcements.announce_cancelled_turn(turn.session_id, turn.pk, ended)
    next_turn.release_or_start_next(turn.session_id, turn.token, ended.stop_through)
    return True


def _fail_as_worker_lost(turn: Turn, fence: int) -> bool:
    try:
        ended = turn_transitions.end_turn(turn.pk, fence, turns.FAILED, failure_code="worker_lost")
    except TurnConflict:
        return False
    _publish_failure(turn, ended, "worker_lost")
    return True


def _publish_failure(turn: Turn, ended: turn_transitions.EndedTurn, code: str) -> None:
    events = announcements.close_open_work(turn.session_id, turn.pk, LOST_WORKER_RESULT)
    limit_checks.release_turn_hold(turn.session.owner_id, str(turn.pk))
    notice_id = messages.post_notice(turn.session_id, turn.pk, code)
    events += [
        (chat_selectors.build_notice_posted(notice_id, code), str(turn.pk)),
        (TurnFailed(run_ids=ended.run_ids, code=code, notice_id=str(notice_id)), str(turn.pk)),
        *((event, None) for event in ended.build_session_events()),
    ]
    announcements.publish_events(turn.session_id, turn.session.owner_id, events)
    next_turn.release_or_start_next(turn.session_id, turn.token, lease.KEEP_WHOLE_QUEUE)


# --- Unpublished events ------------------------------------------------------------------------------


def publish_lost_endings() -> int:
    """Publish endings of recently ended turns whose worker may have died between the row and the event."""
    dead_workers = heartbeat.list_dead_workers()
    stopped_late = Q(stop_requested_at__lt=F("ended_at") - STOP_OVERRIDE_AGE)
    crashed = Q(failure_code__in=["idle_timeout", "unknown"])  # its final writes may have been cut short
    suspicious = Q(worker__in=dead_workers) | Q(recovered_at__isnull=False) | stopped_late | crashed
    recent = Turn.objects.filter(
        suspicious, ended_at__gt=Now() - ENDING_LOOKBACK, ended_at__lt=Now() - STOP_OVERRIDE_AGE
    )
    published = repair_each(recent.select_related("session")[:REPAIR_STEP_ITEMS], _publish_ending)
    repair_each(Turn.objects.waiting().filter(worker__in=dead_workers)[:REPAIR_STEP_ITEMS], _publish_pause)
    for worker in dead_workers:
        heartbeat.delete_worker(worker)
    return published


def _publish_pause(turn: Turn) -> bool:
    """Publish a paused turn again: its worker may have died after it stored the approvals and before it published them."""
    lease.release_lease(str(turn.session_id), str(turn.token))
    return announcements.publish_snapshot(turn.session_id)


def record_calls_of_lost_workers(*, looked_before: bool) -> int:
    return model_calls.record_forgotten_calls(turns_of=REGULAR_LOOKBACK if looked_before else FIRST_LOOKBACK)


def publish_unpublished_sessions() -> int:
    """Publish snapshots of sessions whose rows changed while the event log was unreachable."""
    return repair_each(announcements.list_unpublished_sessions(), _publish_session)


def _publish_session(unpublished: announcements.UnpublishedSession) -> bool:
    if not announcements.publish_snapshot(unpublished.session_id):
        return False
    announcements.publish_session_change(Session.objects.get(pk=unpublished.session_id))
    _publish_endings_before(unpublished)
    announcements.mark_published(unpublished)
    return True


def _publish_endings_before(unpublished: announcements.UnpublishedSession) -> None:
    """Publish endings that web requests caused. Those that workers cause wait in the workers' outboxes."""
    endings = Turn.objects.filter(session=unpublished.session_id, worker="", status__in=Turn.ENDINGS)
    recent = endings.filter(
        ended_at__lte=unpublished.failed_at, ended_at__gt=unpublished.failed_at - ENDING_LOOKBACK
    ).select_related("session")
    for turn in recent:
        _publish_ending(turn)


def _publish_ending(turn: Turn) -> bool:
    if event_log.is_ending_published(turn):
        return False
    announcements.publish_snapshot(turn.session_id)
    announcements.publish_events(
        turn.session_id, turn.session.owner_id, [(_build_ending_event(turn), str(turn.pk))]
    )
    keep_through = {"succeeded": None, "cancelled": turn.stop_through}.get(
        turn.status, lease.KEEP_WHOLE_QUEUE
    )
    next_turn.release_or_start_next(turn.session_id, turn.token, keep_through)
    return True


def _build_ending_event(turn: Turn) -> TurnEnding:
    run_ids = list(turn.run_ids)
    match turn.status:
        case Turn.Status.SUCCEEDED:
            summary = msgspec.convert(turn.summary, TurnSummary)
            return TurnSucceeded(run_ids=run_ids, summary=summary, limit_code=turn.limit_code or None)
        case Turn.Status.FAILED:
            return TurnFailed(run_ids=run_ids, code=turn.failure_code, notice_id=None)
        case _:
            return TurnCancelled(run_ids=run_ids, reason=turn_transitions.get_cancel_reason(turn))


# --- Overdue stops -----------------------------------------------------------------------------------


def override_stops() -> int:
    """End turns that were stopped a while ago and still run or wait, by compare-and-set."""
    return repair_each(_overdue_stops()[:REPAIR_STEP_ITEMS], _override_turn)


def override_stop_of_turn(turn_id: UUID) -> bool:
    """End one stopped turn; False when it has ended by itself or still has time to."""
    return any(_override_turn(turn) for turn in _overdue_stops().filter(pk=turn_id))


def _overdue_stops() -> QuerySet[Turn]:
    overdue = Turn.objects.filter(status__in=(turns.RUNNING, turns.WAITING)).extra(  # noqa: S610 - a constant
        where=[f"stop_requested_at < now() - interval '{STOP_OVERRIDE_SECONDS} seconds'"]
    )
    return overdue.select_related("session")


def _override_turn(turn: Turn) -> bool:
    if not _cancel_turn(turn, turn.fence, override=True):
        return False
    record_repair("override_stop", turn.pk, status=turn.status, fence=turn.fence)
    return True


# --- Expired approvals -------------------------------------------------------------------------------


def expire_approval_requests() -> int:
    return sum(_expire_turn(turn_id) for turn_id in approvals.list_expired_turns(APPROVAL_LIFETIME_SECONDS))


def _expire_turn(turn_id: UUID) -> bool:
    if not paused_turns.expire_paused_turn(turn_id):
        return False
    record_repair("expire", turn_id, status=turns.WAITING)
    return True


# --- Lost tasks and messages -------------------------------------------------------------------------


# Throttled turns that may start by now, per user: their wake-up was lost, or the user's limit was raised.
_SELECT_STARTABLE = """
SELECT candidate.id, candidate.session_id, candidate.dispatch_count
FROM (SELECT DISTINCT payer_id FROM copilot_turn
      WHERE status = 'queued' AND parent_id IS NULL AND throttled_by <> '' AND ended_at IS NULL) AS payer
CROSS JOIN LATERAL (
    SELECT billing_turns_at_once(payer.payer_id) AS allowed, count(*) AS running FROM copilot_turn t
    WHERE t.payer_id = payer.payer_id AND t.parent_id IS NULL AND t.status = 'running') AS capacity
CROSS JOIN LATERAL (
    SELECT t.* FROM copilot_turn t
    WHERE t.payer_id = payer.payer_id AND t.parent_id IS NULL AND t.status = 'queued'
    ORDER BY t.created_at, t.id
    LIMIT CASE WHEN capacity.allowed = 0 THEN %(limit)s ELSE greatest(capacity.allowed - capacity.running, 0) END) AS candidate
WHERE candidate.throttled_by <> ''
  AND COALESCE(candidate.dispatched_at, candidate.queued_at) < now() - interval '1 second' *
      CASE WHEN candidate.dispatch_count <= 1 THEN %(seconds)s ELSE %(again_seconds)s END
  AND (candidate.throttled_by = 'user' OR %(per_address)s = 0 OR %(per_address)s > (
       SELECT count(*) FROM copilot_turn r
       WHERE r.address_hash = candidate.address_hash AND r.parent_id IS NULL AND r.status = 'running'))
LIMIT %(limit)s
"""


class _QueuedTurn(NamedTuple):
    id: UUID
    session_id: UUID
    dispatch_count: int


def resend_queued_turns() -> int:
    """Enqueue queued turns again that no worker picked up, and throttled ones that may start by now."""
    unclaimed = fetch_all(
        _QueuedTurn,
        """
        SELECT id, session_id, dispatch_count FROM copilot_turn WHERE status = 'queued' AND ended_at IS NULL
          AND throttled_by = '' AND COALESCE(dispatched_at, queued_at) < now() - %s * interval '1 second'
        ORDER BY queued_at LIMIT 200
        """,
        [QUEUED_TOO_LONG_SECONDS],
    )
    startable = fetch_all(
        _QueuedTurn,
        _SELECT_STARTABLE,
        {
            "limit": REPAIR_STEP_ITEMS,
            "seconds": THROTTLED_RETRY_SECONDS,
            "again_seconds": QUEUED_TOO_LONG_SECONDS,
            "per_address": settings.TURNS_AT_ONCE_PER_ADDRESS,
        },
    )
    return repair_each([*startable, *unclaimed], _resend_turn)


def _resend_turn(turn: _QueuedTurn) -> bool:
    if not turn_transitions.mark_sent_again(turn.id):
        return False
    if turn.dispatch_count <= 1:  # repeating it every half minute counts as one repair
        record_repair("send_again", turn.id, status=turns.QUEUED)
    try:
        # Its request may have died before it published anything.
        announcements.publish_snapshot(turn.session_id)
    finally:
        tasks.enqueue_turn(turn.id)
    return True


def list_sessions_to_start() -> list[UUID]:
    """List sessions with queued messages and no turn that they could wait for."""
    return turn_selectors.list_stranded_sessions(seconds=STRANDED_AGE_SECONDS)


def start_stranded_session(session_id: UUID) -> bool:
    if not next_turn.start_stranded_messages(session_id):
        return False
    record_repair("start_stranded", session_id, status="idle")
    return True


def deliver_lost_results() -> int:
    """Deliver results of sub-sessions whose delivery was lost with a worker, the broker or Redis."""
    return repair_each(follow_ups.list_overdue_sessions(), _deliver_results)


def _deliver_results(session_id: UUID) -> bool:
    if not follow_ups.deliver_follow_ups(session_id):
        return False
    record_repair("deliver_result", session_id, status="idle")
    return True


# --- After a restore of Postgres ---------------------------------------------------------------------


def rebuild_redis_if_restored() -> bool:
    """Rebuild Redis when Postgres was restored from a backup, and count this sweep. Call this before all other repairs.

    After a restore Redis remembers turns that no longer exist. Its fences are higher than the rows', so everything that
    workers publish would be refused and every turn would end as `worker_lost`.
    """
    verdict, database, copy = database_restores.compare_with_redis()
    if verdict == "shared":
        log.error("redis_shared", hint="another installation uses these keys: change REDIS_KEY_PREFIX")
        return False
    if verdict in ("restored", "other"):
        log.error("postgres_restored", verdict=verdict, postgres=str(database), redis=str(copy))
        try:
            _rebuild_redis()
        except CountersUnavailable:
            log.error("redis_rebuild_delayed")
            return False
        database_restores.record_rebuild()
    database_restores.count_epoch(database)
    return verdict in ("restored", "other")


def has_shared_redis() -> bool:
    return database_restores.is_copy_foreign()


def _rebuild_redis() -> None:
    """Delete all session keys and restore them from the rows. After a crash the epochs still differ, so it is repeated."""
    lease.clear_epoch()
    for session_ids in session_keys.delete_all_session_keys():
        known = [UUID(session_id) for session_id in session_ids if _is_uuid(session_id)]
        announcements.mark_unpublished(*known)  # subscribers get a new snapshot
    redis_counters.delete_all_copies()
    restore_redis_if_empty()


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


# --- After a loss of Redis ---------------------------------------------------------------------------


def restore_redis_if_empty() -> bool:
    """Restore leases and queues from the rows after Redis lost everything."""
    if lease.is_epoch_known():
        return False
    for session_id in _list_sessions_in_use():
        next_turn.restore_session_in_redis(session_id)
        record_repair("restore", session_id, status="forgotten")
    # Sessions whose turn ended while Redis had no queue that it could have continued with.
    repair_each(turn_selectors.list_stranded_sessions(), start_stranded_session)
    lease.mark_epoch()
    return True


def _list_sessions_in_use() -> Iterable[UUID]:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT session_id FROM copilot_turn WHERE status IN ('queued', 'running', 'waiting')
            UNION SELECT session_id FROM copilot_message WHERE sequence IS NULL AND dropped_at IS NULL
            """
        )
        return [row[0] for row in cursor.fetchall()]


def remove_stale_leases() -> int:
    """Release leases whose turn has ended, or was never opened because its request died."""
    removed = 0
    for held in lease.scan_leases():
        if held.claimed_seconds_ago > STRANDED_AGE_SECONDS and not _is_unfinished(held.turn_id):
            removed += lease.release_lease(held.session_id, held.token)
    return removed


def _is_unfinished(turn_id: str) -> bool:
    return Turn.objects.unfinished().filter(pk=turn_id).exists()


# --- Repairs by staff --------------------------------------------------------------------------------


def fail_turn_as_staff(turn_id: UUID, guard: Q, code: str) -> bool:
    """Fail a turn that no worker runs and raise its fence, if the row still matches `guard` under a lock."""
    with transaction.atomic():
        rows = Turn.objects.select_for_update(of=("self",)).select_related("session")
        turn = rows.filter(guard, pk=turn_id).first()
        if turn is None:
            return False
        ended = turn_transitions.end_turn(turn_id, turn.fence, turns.FAILED, failure_code=code, override=True)
    _raise_fence_in_redis(turn, turn.fence + 1)
    try:
        announcements.publish_snapshot(turn.session_id)
        _publish_failure(turn, ended, code)
    except REDIS_OUTAGE_ERRORS:
        log.warning("turn_failure_not_published", turn_id=str(turn_id))  # the sweep does when Redis is back
    return True


def resend_turn_as_staff(turn_id: UUID, guard: Q) -> bool:
    """Enqueue a queued turn's task once more. If the first one arrives after all, only one of them claims the turn."""
    if not turn_transitions.requeue_waiting_turn(turn_id, guard):
        return False
    tasks.enqueue_turn(turn_id)
    return True


def disable_schedule_as_staff(schedule: Schedule, reason: str) -> bool:
    """Disable a schedule that can no longer run, and post a notice where it ran last."""
    if not schedules.disable_schedule(schedule.pk, reason):
        return False
    runner.post_disabled_notice(schedule, None)
    return True
