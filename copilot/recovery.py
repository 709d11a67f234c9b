"""Healing: what became of turns whose worker died, whose task was lost, or which Redis forgot (T9, D2, D10).

Diagnostics decides when to look; every act here is one conditional update, so looking twice is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import F, Q
from django.db.models.functions import Now

from copilot import approvals, dispatch, history, queries, sessions, tasks, turns, usage, workers
from copilot.errors import TurnConflict
from copilot.events import Ending, TurnCancelled, TurnFailed, TurnRecovering, TurnSucceeded, TurnSummary
from copilot.live import beats, lease
from copilot.live.client import RedisDown
from copilot.models import Session, Turn

log = logging.getLogger(__name__)

STOP_OVERRIDE_SECONDS = 5  # a worker that has not obeyed by then is overridden (T7.1)
STRANDED_SECONDS = 10
EVERYTHING_STAYS = 2**62
STOP_OVERRIDE = timedelta(seconds=STOP_OVERRIDE_SECONDS)
MEMORY = timedelta(minutes=2)  # how long ago an ending may be that was never told
Away = RedisDown  # what a sweep meets when it cannot see
LOST = "Interrupted, outcome unknown: the worker was lost while this ran."

Liveness = Literal["live", "dead", "unknown"]


# --- evidence ----------------------------------------------------------------------------------------


def judge(suspects: Sequence[workers.Suspect]) -> dict[str, Liveness]:
    """Live, dead or unknown, by turn id (D2)."""
    names = {suspect.worker for suspect in suspects}
    try:
        redis: dict[str, beats.RedisBeat] | None = beats.read(names, life_seconds=workers.BEAT_LIFE_SECONDS)
    except RedisDown:
        redis = None
    return {suspect.turn_id: _liveness(suspect, redis) for suspect in suspects}


def _liveness(suspect: workers.Suspect, redis: dict[str, beats.RedisBeat] | None) -> Liveness:
    beat = redis.get(suspect.worker) if redis is not None else None
    silent = beat is None or beat.age_seconds > workers.REDIS_BEAT_FRESH_SECONDS
    if redis is not None and suspect.lock_free and silent:
        return "dead"  # the process is gone: the server freed its lock, and nothing was heard since
    if suspect.young or suspect.listed:
        return "live"
    if beat is not None and (suspect.turn_id, suspect.fence) in beat.turns:
        return "live"
    return "unknown" if redis is None else "dead"


# --- a dead worker's turn ----------------------------------------------------------------------------


def take_over(suspect: workers.Suspect) -> bool:
    """Give a dead worker's turn to another one, or end it; False when somebody else acted first."""
    turn_id, session_id = UUID(suspect.turn_id), UUID(suspect.session_id)
    requeued = turns.requeue(turn_id, suspect.fence, lost=True)
    if requeued is None:
        return False
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    _raise_fence(turn, requeued.fence)
    usage.settle_lost(turn_id)
    dispatch.publish_page(session_id)
    if suspect.stopped:
        _cancel(turn, requeued.fence)
    elif requeued.attempts > turns.MAX_ATTEMPTS:
        _give_up(turn, requeued.fence)
    else:
        event = TurnRecovering(attempt=requeued.attempts)
        dispatch.publish(session_id, turn.session.owner_id, [(event, suspect.turn_id)])
        tasks.send(turn_id)
    log.warning("turn %s of session %s lost its worker (attempt %d)", turn_id, session_id, requeued.attempts)
    return True


def _raise_fence(turn: Turn, fence: int) -> None:
    try:
        lease.take_over(str(turn.session_id), turn_id=str(turn.pk), token=str(turn.token), fence=fence)
    except RedisDown:
        log.warning("the fence of session %s could not be raised in Redis yet", turn.session_id)


def _cancel(turn: Turn, fence: int, *, override: bool = False) -> None:
    """The cancelled ending of a stopped turn whose worker does not give it one."""
    try:
        ended = turns.end(turn.pk, fence, turns.CANCELLED, reason="user", override=override)
    except TurnConflict:
        return
    if override:
        _raise_fence(turn, fence + 1)
        dispatch.publish_page(turn.session_id)
    dispatch.announce_cancelled(turn.session_id, turn.pk, ended)
    dispatch.after_turn(turn.session_id, turn.token, ended.stop_through)


def _give_up(turn: Turn, fence: int) -> None:
    try:
        ended = turns.end(turn.pk, fence, turns.FAILED, failure_code="worker_lost")
    except TurnConflict:
        return
    happened = dispatch.closed(turn.session_id, turn.pk, LOST)
    notice_id = history.post_notice(turn.session_id, turn.pk, "worker_lost")
    happened += [
        (queries.notice_posted(notice_id, "worker_lost"), str(turn.pk)),
        (TurnFailed(run_ids=ended.run_ids, code="worker_lost", notice_id=str(notice_id)), str(turn.pk)),
        *((news, None) for news in ended.news()),
    ]
    dispatch.publish(turn.session_id, turn.session.owner_id, happened)
    dispatch.after_turn(turn.session_id, turn.token, EVERYTHING_STAYS)


# --- a dead worker's last words ----------------------------------------------------------------------


def tell_lost_endings() -> int:
    """Turns whose row has ended and whose ending may never have been told: who ended them died first (T9.6)."""
    gone = workers.dead()
    late = Q(stop_requested_at__lt=F("ended_at") - STOP_OVERRIDE)
    suspicious = Q(worker__in=gone) | Q(recovered_at__isnull=False) | late
    recent = Turn.objects.filter(suspicious, ended_at__gt=Now() - MEMORY, ended_at__lt=Now() - STOP_OVERRIDE)
    told = sum(_tell_ending(turn) for turn in recent.select_related("session")[:200])
    for worker in gone:
        workers.forget(worker)
    return told


def tell_untold() -> int:
    """Sessions of which something was stored while the log was away: the page as it stands, to all who watch."""
    told = 0
    for one in sessions.untold():
        if dispatch.publish_page(one.session_id):
            sessions.publish_change(Session.objects.get(pk=one.session_id))
            _tell_endings_before(one)
            sessions.note_told(one)
            told += 1
    return told


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
    keep_through = {"succeeded": None, "cancelled": turn.stop_through}.get(turn.status, EVERYTHING_STAYS)
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
    late = Turn.objects.filter(status__in=(turns.RUNNING, turns.WAITING)).extra(  # noqa: S610 - a constant
        where=[f"stop_requested_at < now() - interval '{STOP_OVERRIDE_SECONDS} seconds'"]
    )
    count = 0
    for turn in late.select_related("session")[:200]:
        _cancel(turn, turn.fence, override=True)
        count += 1
    return count


# --- requests nobody decided about -------------------------------------------------------------------


def expire_requests() -> int:
    """Turns that wait for a person longer than anybody may take (A11.9)."""
    return sum(dispatch.expire(turn_id) for turn_id in approvals.expired(settings.APPROVAL_SECONDS))


# --- tasks and messages that were lost ---------------------------------------------------------------


def send_again() -> int:
    """Queued turns whose task nobody picked up are sent once more (T9.2)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT id, session_id FROM copilot_turn WHERE status = 'queued' AND ended_at IS NULL
              AND COALESCE(dispatched_at, queued_at) < now() - %s * interval '1 second'
            ORDER BY queued_at LIMIT 200
            """,
            [settings.QUEUED_TOO_LONG_SECONDS],
        )
        forgotten = cursor.fetchall()
    for turn_id, session_id in forgotten:
        if turns.note_sent_again(turn_id):
            dispatch.publish_page(session_id)  # its request may have died before it told anybody
            tasks.send_by_broker(turn_id)
    return len(forgotten)


_STRANDED = """
SELECT DISTINCT m.session_id FROM copilot_message m
WHERE m.sequence IS NULL AND m.dropped_at IS NULL AND m.created_at < now() - %s * interval '1 second'
  AND NOT EXISTS (SELECT 1 FROM copilot_turn t WHERE t.session_id = m.session_id
                  AND t.status IN ('queued', 'running', 'waiting'))
  AND (m.run_id IS NOT NULL OR COALESCE(
        (SELECT t.status = 'succeeded' OR t.ended_at < m.created_at OR COALESCE(t.stop_through < m.accept_number, false)
         FROM copilot_turn t WHERE t.session_id = m.session_id ORDER BY t.created_at DESC LIMIT 1), true))
LIMIT 200
"""


def stranded_sessions() -> list[UUID]:
    """Sessions whose messages wait although nothing runs that they could wait for (D3)."""
    with connection.cursor() as cursor:
        cursor.execute(_STRANDED, [STRANDED_SECONDS])
        return [row[0] for row in cursor.fetchall()]


# --- what Redis forgot -------------------------------------------------------------------------------


def restore_if_forgotten() -> bool:
    """After Redis lost everything: leases and queues are put back from the rows (T2.5)."""
    if lease.epoch_is_known():
        return False
    for session_id in _sessions_in_use():
        dispatch.restore(session_id)
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
