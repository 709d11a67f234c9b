"""What was healed while somebody listens: the sweep's acts, for the record that diagnostics keeps (D8, D10)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Literal, TypeVar
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from billing import redis_counters
from billing.errors import CountersUnavailable
from billing.usage import limit_checks
from config.core.errors import TurnConflict
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics, tasks
from copilot.chat import (
    announcements,
    approvals,
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

RepairAction = Literal["take_over", "override_stop", "send_again", "expire", "start_stranded", "restore"]


@dataclass(frozen=True, kw_only=True)
class RepairRecord:
    """`id` is a turn's, or a session's: of stranded messages, or that Redis forgot; the rest is what it was before."""

    act: RepairAction
    id: UUID
    status: str
    fence: int


_collected_repairs: ContextVar[list[RepairRecord] | None] = ContextVar("journal", default=None)


@contextmanager
def collect_repairs() -> Iterator[list[RepairRecord]]:
    notes: list[RepairRecord] = []
    token = _collected_repairs.set(notes)
    try:
        yield notes
    finally:
        _collected_repairs.reset(token)


def record_repair(act: RepairAction, identifier: UUID, *, status: str, fence: int = 0) -> None:
    notes = _collected_repairs.get()
    if notes is not None:
        notes.append(RepairRecord(act=act, id=identifier, status=status, fence=fence))


# MERGED recovery: Healing: what became of turns whose worker died, whose task was lost, or which Redis forgot (T9, D2, D10).
# MERGED recovery: Diagnostics decides when to look; every act here is one conditional update, so looking twice is harmless.

log = logging.getLogger(__name__)

STOP_OVERRIDE_SECONDS = 5  # a worker that has not obeyed by then is overridden (T7.1)
STRANDED_AGE_SECONDS = 10
THROTTLED_RETRY_SECONDS = 2  # a turn that ends wakes those at a cap within milliseconds
STOP_OVERRIDE_AGE = timedelta(seconds=STOP_OVERRIDE_SECONDS)
REGULAR_LOOKBACK, FIRST_LOOKBACK = (
    timedelta(minutes=5),
    timedelta(days=1),
)  # how far back calls are looked for, and at first
ENDING_LOOKBACK = timedelta(minutes=2)  # how long ago an ending may be that was never told
SWEEP_OUTAGE_ERRORS = REDIS_OUTAGE_ERRORS  # what a sweep meets when it cannot see
LOST_WORKER_RESULT = "Interrupted, outcome unknown: the worker was lost while this ran."

REPAIR_STEP_SECONDS = 1.0  # of one tick, for one kind of repair: the rest is done in the next
REPAIR_STEP_ITEMS = 200

T = TypeVar("T")


def repair_each(
    items: Iterable[T], heal: Callable[[T], object], *, seconds: float = REPAIR_STEP_SECONDS
) -> int:
    """Heal one by one, as far as a tick's time goes; one that cannot be healed keeps no other waiting."""
    healed, deadline = 0, time.monotonic() + seconds
    for item in islice(items, REPAIR_STEP_ITEMS):
        try:
            healed += bool(heal(item))
        except (OperationalError, InterfaceError, *REDIS_OUTAGE_ERRORS):
            raise  # a server is away: nothing can be healed
        except Exception:
            log.exception("something could not be healed")
        if time.monotonic() > deadline:
            break
    return healed


# --- the sweep itself --------------------------------------------------------------------------------


def record_sweep(*, blind: bool = False) -> None:
    """For whoever asks whether the sweep lives (D17), and sees."""
    heartbeat.write_sweep(blind=blind)


# --- a dead worker's turn ----------------------------------------------------------------------------


def take_over_turn(suspect: liveness.TurnEvidence) -> bool:
    """Give a dead worker's turn to another one, or end it; False when somebody else acted first."""
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
        finally:  # whatever could not be told, the turn goes on
            tasks.wake_worker(turn_id)
    log.warning("turn %s of session %s lost its worker (attempt %d)", turn_id, session_id, requeued.attempts)
    return True


def _publish_lost_state(turn: Turn) -> None:
    model_calls.record_lost_calls(turn.pk)
    announcements.publish_snapshot(turn.session_id)


def _raise_fence_in_redis(turn: Turn, fence: int) -> None:
    try:
        lease.take_over_lease(str(turn.session_id), turn_id=str(turn.pk), token=str(turn.token), fence=fence)
    except REDIS_OUTAGE_ERRORS:
        log.warning("the fence of session %s could not be raised in Redis yet", turn.session_id)


def _cancel_turn(turn: Turn, fence: int, *, override: bool = False) -> bool:
    """The cancelled ending of a stopped turn whose worker does not give it one."""
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
    happened = announcements.close_open_work(turn.session_id, turn.pk, LOST_WORKER_RESULT)
    limit_checks.release_turn_hold(turn.session.owner_id, str(turn.pk))
    notice_id = messages.post_notice(turn.session_id, turn.pk, code)
    happened += [
        (chat_selectors.build_notice_posted(notice_id, code), str(turn.pk)),
        (TurnFailed(run_ids=ended.run_ids, code=code, notice_id=str(notice_id)), str(turn.pk)),
        *((news, None) for news in ended.build_session_events()),
    ]
    announcements.publish_events(turn.session_id, turn.session.owner_id, happened)
    next_turn.release_or_start_next(turn.session_id, turn.token, lease.KEEP_WHOLE_QUEUE)


# --- a dead worker's last words ----------------------------------------------------------------------


def publish_lost_endings() -> int:
    """Turns whose row has ended and whose ending may never have been told: who ended them died first (T9.6)."""
    gone = heartbeat.list_dead_workers()
    late = Q(stop_requested_at__lt=F("ended_at") - STOP_OVERRIDE_AGE)
    broken = Q(failure_code__in=["idle_timeout", "unknown"])  # its final writes may have been cut short
    suspicious = Q(worker__in=gone) | Q(recovered_at__isnull=False) | late | broken
    recent = Turn.objects.filter(
        suspicious, ended_at__gt=Now() - ENDING_LOOKBACK, ended_at__lt=Now() - STOP_OVERRIDE_AGE
    )
    told = repair_each(recent.select_related("session")[:REPAIR_STEP_ITEMS], _publish_ending)
    repair_each(
        Turn.objects.filter(worker__in=gone, status=turns.WAITING)[:REPAIR_STEP_ITEMS], _publish_pause
    )
    for worker in gone:
        heartbeat.delete_worker(worker)
    return told


def _publish_pause(turn: Turn) -> bool:
    """Its worker may have died between the requests' rows and the news of them (A11.3)."""
    lease.release_lease(str(turn.session_id), str(turn.token))
    return announcements.publish_snapshot(turn.session_id)


def record_calls_of_lost_workers(*, looked_before: bool) -> int:
    """Model calls that were sent and whose cost nobody recorded: who made them is gone (B4.1, A19.6)."""
    return model_calls.record_forgotten_calls(turns_of=REGULAR_LOOKBACK if looked_before else FIRST_LOOKBACK)


def publish_unpublished_sessions() -> int:
    """Sessions of which something was stored while the log was away: the page as it stands, to all who watch."""
    return repair_each(announcements.list_unpublished_sessions(), _publish_session)


def _publish_session(one: announcements.UnpublishedSession) -> bool:
    if not announcements.publish_snapshot(one.session_id):
        return False
    announcements.publish_session_change(Session.objects.get(pk=one.session_id))
    _publish_endings_before(one)
    announcements.mark_published(one)
    return True


def _publish_endings_before(one: announcements.UnpublishedSession) -> None:
    """Endings that a request gave; those that workers give wait in their outboxes."""
    endings = Turn.objects.filter(session=one.session_id, worker="", status__in=Turn.ENDINGS)
    recent = endings.filter(
        ended_at__lte=one.failed_at, ended_at__gt=one.failed_at - ENDING_LOOKBACK
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


# --- stops that were not obeyed ----------------------------------------------------------------------


def override_stops() -> int:
    """Turns stopped a while ago that still run or wait are ended by compare-and-set (T7.1)."""
    return repair_each(_overdue_stops()[:REPAIR_STEP_ITEMS], _override_turn)


def override_stop_of_turn(turn_id: UUID) -> bool:
    """The same, of one turn; False when it has obeyed, or has time left to."""
    return any(_override_turn(turn) for turn in _overdue_stops().filter(pk=turn_id))


def _overdue_stops() -> QuerySet[Turn]:
    late = Turn.objects.filter(status__in=(turns.RUNNING, turns.WAITING)).extra(  # noqa: S610 - a constant
        where=[f"stop_requested_at < now() - interval '{STOP_OVERRIDE_SECONDS} seconds'"]
    )
    return late.select_related("session")


def _override_turn(turn: Turn) -> bool:
    if not _cancel_turn(turn, turn.fence, override=True):
        return False
    record_repair("override_stop", turn.pk, status=turn.status, fence=turn.fence)
    return True


# --- requests nobody decided about -------------------------------------------------------------------


def expire_approval_requests() -> int:
    """Turns that wait for a person longer than anybody may take (A11.9)."""
    return sum(_expire_turn(turn_id) for turn_id in approvals.list_expired_turns(settings.APPROVAL_SECONDS))


def _expire_turn(turn_id: UUID) -> bool:
    if not paused_turns.expire_paused_turn(turn_id):
        return False
    record_repair("expire", turn_id, status=turns.WAITING)
    return True


# --- tasks and messages that were lost ---------------------------------------------------------------


# Of each user with turns at a cap: those for which there is room by now, because a wake-up was lost or the cap was raised.
_SELECT_STARTABLE = """
SELECT one.id, one.session_id, one.dispatch_count
FROM (SELECT DISTINCT payer_id FROM copilot_turn
      WHERE status = 'queued' AND parent_id IS NULL AND throttle <> '' AND ended_at IS NULL) AS payer
CROSS JOIN LATERAL (
    SELECT billing_turns_at_once(payer.payer_id) AS seats, count(*) AS busy FROM copilot_turn t
    WHERE t.payer_id = payer.payer_id AND t.parent_id IS NULL AND t.status = 'running') AS room
CROSS JOIN LATERAL (
    SELECT t.* FROM copilot_turn t
    WHERE t.payer_id = payer.payer_id AND t.parent_id IS NULL AND t.status = 'queued'
    ORDER BY t.created_at, t.id
    LIMIT CASE WHEN room.seats = 0 THEN %(most)s ELSE greatest(room.seats - room.busy, 0) END) AS one
WHERE one.throttle <> '' AND COALESCE(one.dispatched_at, one.queued_at) < now() - interval '1 second' *
      CASE WHEN one.dispatch_count <= 1 THEN %(seconds)s ELSE %(again_seconds)s END
  AND (one.throttle = 'user' OR %(per_address)s = 0 OR %(per_address)s > (
       SELECT count(*) FROM copilot_turn r
       WHERE r.address = one.address AND r.parent_id IS NULL AND r.status = 'running'))
LIMIT %(most)s
"""


def resend_queued_turns() -> int:
    """Queued turns whose task nobody picked up are sent once more, and those at a cap for which there is room (T9.2)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT id, session_id, dispatch_count FROM copilot_turn WHERE status = 'queued' AND ended_at IS NULL
              AND throttle = '' AND COALESCE(dispatched_at, queued_at) < now() - %s * interval '1 second'
            ORDER BY queued_at LIMIT 200
            """,
            [settings.QUEUED_TOO_LONG_SECONDS],
        )
        forgotten = cursor.fetchall()
        cursor.execute(
            _SELECT_STARTABLE,
            {
                "most": REPAIR_STEP_ITEMS,
                "seconds": THROTTLED_RETRY_SECONDS,
                "again_seconds": settings.QUEUED_TOO_LONG_SECONDS,
                "per_address": settings.TURNS_AT_ONCE_PER_ADDRESS,
            },
        )
        startable = cursor.fetchall()
    return repair_each([*startable, *forgotten], _resend_turn)


def _resend_turn(forgotten: tuple[UUID, UUID, int]) -> bool:
    turn_id, session_id, sent = forgotten
    if not turn_transitions.mark_sent_again(turn_id):
        return False
    if sent <= 1:  # the same again every half minute is one repair
        record_repair("send_again", turn_id, status=turns.QUEUED)
    try:
        announcements.publish_snapshot(session_id)  # its request may have died before it told anybody
    finally:
        tasks.enqueue_turn(turn_id)
    return True


def list_sessions_to_start() -> list[UUID]:
    """Sessions whose messages wait although nothing runs that they could wait for (D3)."""
    return turn_selectors.list_stranded_sessions(seconds=STRANDED_AGE_SECONDS)


def start_stranded_session(session_id: UUID) -> bool:
    if not next_turn.start_stranded_messages(session_id):
        return False
    record_repair("start_stranded", session_id, status="idle")
    return True


# --- what Postgres lost ------------------------------------------------------------------------------


def rebuild_redis_if_restored() -> bool:
    """Rebuild Redis when Postgres was restored from a backup; else count this sweep. To be called before all else.

    Redis then remembers turns that no longer exist. Its fences stand higher than the rows', so whatever workers publish
    is refused and every turn would end as `worker_lost`.
    """
    verdict, database, copy = database_restores.compare_with_redis()
    if verdict == "shared":
        log.error(
            "redis_shared: another installation writes to the same Redis keys; give each its own REDIS_KEY_PREFIX"
        )
        return False
    if verdict in ("restored", "other"):
        log.error("postgres_restored: Redis is rebuilt from the rows; Postgres %s, Redis %s", database, copy)
        try:
            _rebuild_redis()
        except CountersUnavailable:
            log.error("postgres_restored: Redis went away; the next sweep tries again")
            return False
        database_restores.record_rebuild()
    database_restores.count_epoch(database)
    return verdict in ("restored", "other")


def has_shared_redis() -> bool:
    """Tell whether another installation writes to the same keys."""
    return database_restores.is_copy_foreign()


def _rebuild_redis() -> None:
    """As after a flush, but for what no row stands behind. A crash on the way leaves the epochs apart: it is repeated."""
    lease.clear_epoch()
    for session_ids in session_keys.delete_all_session_keys():
        known = [UUID(one) for one in session_ids if _is_uuid(one)]
        announcements.mark_unpublished(*known)  # whoever watches is told the page anew
    redis_counters.delete_all_copies()
    restore_redis_if_empty()


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


# --- what Redis forgot -------------------------------------------------------------------------------


def restore_redis_if_empty() -> bool:
    """After Redis lost everything: leases and queues are put back from the rows (T2.5)."""
    if lease.is_epoch_known():
        return False
    for session_id in _list_sessions_in_use():
        next_turn.restore_session_in_redis(session_id)
        record_repair("restore", session_id, status="forgotten")
    repair_each(
        turn_selectors.list_stranded_sessions(), start_stranded_session
    )  # whose turn let go while the queue was forgotten
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
    """Leases whose turn has ended, or was never opened because its request died (T9.6)."""
    removed = 0
    for held in lease.scan_leases():
        if held.claimed_seconds_ago > STRANDED_AGE_SECONDS and not _is_unfinished(held.turn_id):
            removed += lease.release_lease(held.session_id, held.token)
    return removed


def _is_unfinished(turn_id: str) -> bool:
    return Turn.objects.filter(pk=turn_id, status__in=Turn.UNFINISHED).exists()


# --- at the word of staff ----------------------------------------------------------------------------


def fail_turn_as_staff(turn_id: UUID, guard: Q, code: str) -> bool:
    """Fail a turn that nobody runs, if at this very moment it is what `guard` says: the fence goes up with it (D9)."""
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
        log.warning("turn %s was given up; the sweep tells of it when Redis is back", turn_id)
    return True


def resend_turn_as_staff(turn_id: UUID, guard: Q) -> bool:
    """Publish a queued turn's task once more; of two copies one runs (D9)."""
    if not turn_transitions.requeue_waiting_turn(turn_id, guard):
        return False
    tasks.enqueue_turn(turn_id)
    return True


def disable_schedule_as_staff(schedule: Schedule, reason: str) -> bool:
    """A schedule that can no longer run; its owner is told where it ran last (D11)."""
    if not schedules.disable_schedule(schedule.pk, reason):
        return False
    runner.post_disabled_notice(schedule, None)
    return True
