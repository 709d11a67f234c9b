"""Healing: what became of turns whose worker died, whose task was lost, or which Redis forgot (T9, D2, D10).

Diagnostics decides when to look; every act here is one conditional update, so looking twice is harmless.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import islice
from typing import TypeVar
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from billing import counters as billing_counters
from billing import usage as billing_usage
from billing.errors import CountersDown
from copilot import (
    approvals,
    database_restores,
    dispatch,
    evidence,
    executions,
    history,
    lost_calls,
    metrics,
    queries,
    schedules,
    scheduling,
    sessions,
    tasks,
    turns,
    workers,
)
from copilot import journal as journal  # diagnostics listens here
from copilot.errors import TurnConflict
from copilot.events import Ending, TurnCancelled, TurnFailed, TurnRecovering, TurnSucceeded, TurnSummary
from copilot.live import beats, lease, wiping
from copilot.live.client import RedisDown
from copilot.models import Schedule, Session, Turn

log = logging.getLogger(__name__)

STOP_OVERRIDE_SECONDS = 5  # a worker that has not obeyed by then is overridden (T7.1)
STRANDED_SECONDS = 10
THROTTLED_SECONDS = 2  # a turn that ends wakes those at a cap within milliseconds
STOP_OVERRIDE = timedelta(seconds=STOP_OVERRIDE_SECONDS)
SWEPT, UNSWEPT = timedelta(minutes=5), timedelta(days=1)  # how far back calls are looked for, and at first
MEMORY = timedelta(minutes=2)  # how long ago an ending may be that was never told
Away = RedisDown  # what a sweep meets when it cannot see
LOST = "Interrupted, outcome unknown: the worker was lost while this ran."

STEP_SECONDS = 1.0  # of one tick, for one kind of repair: the rest is done in the next
STEP_ITEMS = 200

T = TypeVar("T")


def each(items: Iterable[T], heal: Callable[[T], object], *, seconds: float = STEP_SECONDS) -> int:
    """Heal one by one, as far as a tick's time goes; one that cannot be healed keeps no other waiting."""
    healed, deadline = 0, time.monotonic() + seconds
    for item in islice(items, STEP_ITEMS):
        try:
            healed += bool(heal(item))
        except (OperationalError, InterfaceError, *RedisDown):
            raise  # a server is away: nothing can be healed
        except Exception:
            log.exception("something could not be healed")
        if time.monotonic() > deadline:
            break
    return healed


# --- the sweep itself --------------------------------------------------------------------------------


def note_look(*, blind: bool = False) -> None:
    """For whoever asks whether the sweep lives (D17), and sees."""
    beats.note_sweep(blind=blind)


# --- a dead worker's turn ----------------------------------------------------------------------------


def take_over(suspect: evidence.Suspect) -> bool:
    """Give a dead worker's turn to another one, or end it; False when somebody else acted first."""
    turn_id, session_id = UUID(suspect.turn_id), UUID(suspect.session_id)
    requeued = turns.requeue(turn_id, suspect.fence, lost=True)
    if requeued is None:
        return False
    journal.note("take_over", turn_id, status=turns.RUNNING, fence=suspect.fence)
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    _raise_fence(turn, requeued.fence)
    decision = "cancelled" if suspect.stopped else "failed" if requeued.used_up else "continued"
    metrics.turn_recoveries.labels(decision).inc()
    if suspect.stopped or requeued.used_up:
        _tell_lost(turn)
        end = _cancel if suspect.stopped else _give_up
        end(turn, requeued.fence)
    else:
        try:
            _tell_lost(turn)
            event = TurnRecovering(attempt=requeued.attempts)
            dispatch.publish(session_id, turn.session.owner_id, [(event, suspect.turn_id)])
        finally:  # whatever could not be told, the turn goes on
            tasks.send(turn_id)
    log.warning("turn %s of session %s lost its worker (attempt %d)", turn_id, session_id, requeued.attempts)
    return True


def _tell_lost(turn: Turn) -> None:
    lost_calls.settle(turn.pk)
    dispatch.publish_page(turn.session_id)


def _raise_fence(turn: Turn, fence: int) -> None:
    try:
        lease.take_over(str(turn.session_id), turn_id=str(turn.pk), token=str(turn.token), fence=fence)
    except RedisDown:
        log.warning("the fence of session %s could not be raised in Redis yet", turn.session_id)


def _cancel(turn: Turn, fence: int, *, override: bool = False) -> bool:
    """The cancelled ending of a stopped turn whose worker does not give it one."""
    try:
        ended = turns.end(turn.pk, fence, turns.CANCELLED, reason="user", override=override)
    except TurnConflict:
        return False
    if override:
        _raise_fence(turn, fence + 1)
        dispatch.publish_page(turn.session_id)
    dispatch.announce_cancelled(turn.session_id, turn.pk, ended)
    dispatch.after_turn(turn.session_id, turn.token, ended.stop_through)
    return True


def _give_up(turn: Turn, fence: int) -> bool:
    try:
        ended = turns.end(turn.pk, fence, turns.FAILED, failure_code="worker_lost")
    except TurnConflict:
        return False
    _tell_failed(turn, ended, "worker_lost")
    return True


def _tell_failed(turn: Turn, ended: turns.Ended, code: str) -> None:
    happened = dispatch.closed(turn.session_id, turn.pk, LOST)
    billing_usage.settle(turn.session.owner_id, str(turn.pk))
    notice_id = history.post_notice(turn.session_id, turn.pk, code)
    happened += [
        (queries.notice_posted(notice_id, code), str(turn.pk)),
        (TurnFailed(run_ids=ended.run_ids, code=code, notice_id=str(notice_id)), str(turn.pk)),
        *((news, None) for news in ended.news()),
    ]
    dispatch.publish(turn.session_id, turn.session.owner_id, happened)
    dispatch.after_turn(turn.session_id, turn.token, lease.EVERYTHING_STAYS)


# --- a dead worker's last words ----------------------------------------------------------------------


def tell_lost_endings() -> int:
    """Turns whose row has ended and whose ending may never have been told: who ended them died first (T9.6)."""
    gone = workers.dead()
    late = Q(stop_requested_at__lt=F("ended_at") - STOP_OVERRIDE)
    broken = Q(failure_code__in=["idle_timeout", "unknown"])  # its final writes may have been cut short
    suspicious = Q(worker__in=gone) | Q(recovered_at__isnull=False) | late | broken
    recent = Turn.objects.filter(suspicious, ended_at__gt=Now() - MEMORY, ended_at__lt=Now() - STOP_OVERRIDE)
    told = each(recent.select_related("session")[:STEP_ITEMS], _tell_ending)
    each(Turn.objects.filter(worker__in=gone, status=turns.WAITING)[:STEP_ITEMS], _tell_pause)
    for worker in gone:
        workers.forget(worker)
    return told


def _tell_pause(turn: Turn) -> bool:
    """Its worker may have died between the requests' rows and the news of them (A11.3)."""
    lease.give_back(str(turn.session_id), str(turn.token))
    return dispatch.publish_page(turn.session_id)


def settle_forgotten_calls(*, looked_before: bool) -> int:
    """Model calls that were sent and whose cost nobody recorded: who made them is gone (B4.1, A19.6)."""
    return lost_calls.settle_forgotten(turns_of=SWEPT if looked_before else UNSWEPT)


def tell_untold() -> int:
    """Sessions of which something was stored while the log was away: the page as it stands, to all who watch."""
    return each(sessions.untold(), _tell_page)


def _tell_page(one: sessions.Untold) -> bool:
    if not dispatch.publish_page(one.session_id):
        return False
    sessions.publish_change(Session.objects.get(pk=one.session_id))
    _tell_endings_before(one)
    sessions.note_told(one)
    return True


def _tell_endings_before(one: sessions.Untold) -> None:
    """Endings that a request gave; those that workers give wait in their outboxes."""
    endings = Turn.objects.filter(session=one.session_id, worker="", status__in=Turn.ENDINGS)
    recent = endings.filter(ended_at__lte=one.at, ended_at__gt=one.at - MEMORY).select_related("session")
    for turn in recent:
        _tell_ending(turn)


def _tell_ending(turn: Turn) -> bool:
    if queries.ending_is_told(turn):
        return False
    dispatch.publish_page(turn.session_id)
    dispatch.publish(turn.session_id, turn.session.owner_id, [(_ending(turn), str(turn.pk))])
    keep_through = {"succeeded": None, "cancelled": turn.stop_through}.get(
        turn.status, lease.EVERYTHING_STAYS
    )
    dispatch.after_turn(turn.session_id, turn.token, keep_through)
    return True


def _ending(turn: Turn) -> Ending:
    run_ids = list(turn.run_ids)
    match turn.status:
        case Turn.Status.SUCCEEDED:
            summary = msgspec.convert(turn.summary, TurnSummary)
            return TurnSucceeded(run_ids=run_ids, summary=summary, limit_code=turn.limit_code or None)
        case Turn.Status.FAILED:
            return TurnFailed(run_ids=run_ids, code=turn.failure_code, notice_id=None)
        case _:
            return TurnCancelled(run_ids=run_ids, reason=turns.cancel_reason(turn))


# --- stops that were not obeyed ----------------------------------------------------------------------


def override_stops() -> int:
    """Turns stopped a while ago that still run or wait are ended by compare-and-set (T7.1)."""
    return each(_stopped_long_ago()[:STEP_ITEMS], _override)


def override_stop(turn_id: UUID) -> bool:
    """The same, of one turn; False when it has obeyed, or has time left to."""
    return any(_override(turn) for turn in _stopped_long_ago().filter(pk=turn_id))


def _stopped_long_ago() -> QuerySet[Turn]:
    late = Turn.objects.filter(status__in=(turns.RUNNING, turns.WAITING)).extra(  # noqa: S610 - a constant
        where=[f"stop_requested_at < now() - interval '{STOP_OVERRIDE_SECONDS} seconds'"]
    )
    return late.select_related("session")


def _override(turn: Turn) -> bool:
    if not _cancel(turn, turn.fence, override=True):
        return False
    journal.note("override_stop", turn.pk, status=turn.status, fence=turn.fence)
    return True


# --- requests nobody decided about -------------------------------------------------------------------


def expire_requests() -> int:
    """Turns that wait for a person longer than anybody may take (A11.9)."""
    return sum(_expire(turn_id) for turn_id in approvals.expired(settings.APPROVAL_SECONDS))


def _expire(turn_id: UUID) -> bool:
    if not dispatch.expire(turn_id):
        return False
    journal.note("expire", turn_id, status=turns.WAITING)
    return True


# --- tasks and messages that were lost ---------------------------------------------------------------


# Of each user with turns at a cap: those for which there is room by now, because a wake-up was lost or the cap was raised.
_STARTABLE = """
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


def send_again() -> int:
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
            _STARTABLE,
            {
                "most": STEP_ITEMS,
                "seconds": THROTTLED_SECONDS,
                "again_seconds": settings.QUEUED_TOO_LONG_SECONDS,
                "per_address": settings.TURNS_AT_ONCE_PER_ADDRESS,
            },
        )
        startable = cursor.fetchall()
    return each([*startable, *forgotten], _send_again)


def _send_again(forgotten: tuple[UUID, UUID, int]) -> bool:
    turn_id, session_id, sent = forgotten
    if not turns.note_sent_again(turn_id):
        return False
    if sent <= 1:  # the same again every half minute is one repair
        journal.note("send_again", turn_id, status=turns.QUEUED)
    try:
        dispatch.publish_page(session_id)  # its request may have died before it told anybody
    finally:
        tasks.send_by_broker(turn_id)
    return True


def stranded_sessions() -> list[UUID]:
    """Sessions whose messages wait although nothing runs that they could wait for (D3)."""
    return executions.stranded_sessions(seconds=STRANDED_SECONDS)


def start_stranded(session_id: UUID) -> bool:
    if not dispatch.start_stranded(session_id):
        return False
    journal.note("start_stranded", session_id, status="idle")
    return True


# --- what Postgres lost ------------------------------------------------------------------------------


def rebuild_if_restored() -> bool:
    """Rebuild Redis when Postgres was restored from a backup; else count this sweep. To be called before all else.

    Redis then remembers turns that no longer exist. Its fences stand higher than the rows', so whatever workers publish
    is refused and every turn would end as `worker_lost`.
    """
    verdict, database, copy = database_restores.compare()
    if verdict == "shared":
        log.error(
            "redis_shared: another installation writes to the same Redis keys; give each its own REDIS_KEY_PREFIX"
        )
        return False
    if verdict in ("restored", "other"):
        log.error("postgres_restored: Redis is rebuilt from the rows; Postgres %s, Redis %s", database, copy)
        try:
            _rebuild()
        except CountersDown:
            log.error("postgres_restored: Redis went away; the next sweep tries again")
            return False
        database_restores.note_rebuild()
    database_restores.count_epoch(database)
    return verdict in ("restored", "other")


def is_redis_shared() -> bool:
    """Tell whether another installation writes to the same keys."""
    return database_restores.is_redis_shared()


def _rebuild() -> None:
    """As after a flush, but for what no row stands behind. A crash on the way leaves the epochs apart: it is repeated."""
    lease.forget_epoch()
    for session_ids in wiping.wipe_all():
        known = [UUID(one) for one in session_ids if _is_uuid(one)]
        sessions.note_untold(*known)  # whoever watches is told the page anew
    billing_counters.forget_all()
    restore_if_forgotten()


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


# --- what Redis forgot -------------------------------------------------------------------------------


def restore_if_forgotten() -> bool:
    """After Redis lost everything: leases and queues are put back from the rows (T2.5)."""
    if lease.epoch_is_known():
        return False
    for session_id in _sessions_in_use():
        dispatch.restore(session_id)
        journal.note("restore", session_id, status="forgotten")
    each(executions.stranded_sessions(), start_stranded)  # whose turn let go while the queue was forgotten
    lease.mark_epoch()
    return True


def _sessions_in_use() -> Iterable[UUID]:
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
    for held in lease.all_leases():
        if held.claimed_seconds_ago > STRANDED_SECONDS and not _is_unfinished(held.turn_id):
            removed += lease.give_back(held.session_id, held.token)
    return removed


def _is_unfinished(turn_id: str) -> bool:
    return Turn.objects.filter(pk=turn_id, status__in=Turn.UNFINISHED).exists()


# --- at the word of staff ----------------------------------------------------------------------------


def give_up(turn_id: UUID, guard: Q, code: str) -> bool:
    """Fail a turn that nobody runs, if at this very moment it is what `guard` says: the fence goes up with it (D9)."""
    with transaction.atomic():
        rows = Turn.objects.select_for_update(of=("self",)).select_related("session")
        turn = rows.filter(guard, pk=turn_id).first()
        if turn is None:
            return False
        ended = turns.end(turn_id, turn.fence, turns.FAILED, failure_code=code, override=True)
    _raise_fence(turn, turn.fence + 1)
    try:
        dispatch.publish_page(turn.session_id)
        _tell_failed(turn, ended, code)
    except RedisDown:
        log.warning("turn %s was given up; the sweep tells of it when Redis is back", turn_id)
    return True


def send_anew(turn_id: UUID, guard: Q) -> bool:
    """Publish a queued turn's task once more; of two copies one runs (D9)."""
    if not turns.send_anew(turn_id, guard):
        return False
    tasks.send_by_broker(turn_id)
    return True


def switch_off(schedule: Schedule, reason: str) -> bool:
    """A schedule that can no longer run; its owner is told where it ran last (D11)."""
    if not schedules.switch_off(schedule.pk, reason):
        return False
    scheduling.tell_off(schedule, None)
    return True
