"""Starts what is due by the clock, and sees how it ended (A26.3)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from copilot import history, presets, queries, schedules, sessions
from copilot.context import Arrival
from copilot.errors import Refused, TooMany, Unavailable
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Message, Schedule, ScheduleRun, Turn
from copilot.permissions import UNRESTRICTED, Permissions, intersect
from copilot.ports import Heard, Said, say

log = logging.getLogger(__name__)

STILL_GOING = "The run before was still going."
TAKEN_BACK = "Its message was taken out of the queue."
NEVER_SAID = "Its message was never sent."
Outcome = ScheduleRun.Outcome
ENDED = {
    Turn.Status.SUCCEEDED: Outcome.SUCCEEDED,
    Turn.Status.FAILED: Outcome.FAILED,
    Turn.Status.CANCELLED: Outcome.CANCELLED,
}
SENDING_SECONDS = 300  # a run without a message after this long was lost with its worker


def tick(now: datetime | None = None) -> int:
    """Once a minute: how earlier runs ended, then what is due; how many were started."""
    now = now or datetime.now(UTC)
    for run in schedules.going():
        _look_after(run, now)
    return sum(_run(schedule, now) for schedule in schedules.due(now))


def _run(schedule: Schedule, now: datetime) -> bool:
    """Taken only when it is its turn: should this one break, the others stay due."""
    try:
        run = schedules.claim(schedule, now)
    except Refused as refusal:  # its line or its zone means nothing any more
        if schedules.switch_off(schedule.pk, refusal.message):
            tell_off(schedule, None)
        return False
    return run is not None and _start(schedule, run)


def _start(schedule: Schedule, run: ScheduleRun) -> bool:
    if schedules.is_going(run):
        schedules.settle(run, Outcome.SKIPPED, STILL_GOING)
        return False
    try:
        heard = _say(schedule, run)
    except Refused as refusal:
        log.warning("task %s was refused: %s", schedule.pk, refusal.code)
        # A limit or a server that is away is not the task's fault, and passes.
        counts = not isinstance(refusal, TooMany | Unavailable)
        if schedules.settle(run, Outcome.REFUSED, refusal.code, counts=counts):
            tell_off(schedule, None)
        return False
    if not heard.queued:
        schedules.belongs(run, heard.turn_id)
    return True


def _say(schedule: Schedule, run: ScheduleRun) -> Heard:
    """By the way everybody's messages go, with the rights that were given and that there still are (A26.2)."""
    session_id, text, version = schedule.session_id, schedule.prompt, None
    if schedule.agent_id is not None:  # as it is now: edits count from the next run on (A27.5)
        version = presets.version(schedule.owner_id, schedule.agent_id)
        text = presets.request(version, schedule.inputs)
    fresh = None
    if session_id is None:
        fresh = sessions.create(schedule.owner_id, title=schedule.name, agent_version=version)
    try:
        return say(
            Said(
                user_id=schedule.owner_id,
                session_id=session_id or fresh.pk,  # type: ignore[union-attr]
                text=text,
                origin="schedule",
                permissions=intersect(Permissions.from_json(schedule.permissions), UNRESTRICTED),
                tier=version.tier if version is not None else "",
                run_id=_run_id(run),
                author=schedule.name,
                arrival=msgspec.convert(schedule.arrival, Arrival),
            )
        )
    except Refused:
        if fresh is not None:
            sessions.delete(schedule.owner_id, fresh.pk)
        raise


def _run_id(run: ScheduleRun) -> str:
    """A turn of its own, and the same one however often it is sent."""
    return f"schedule-{run.pk}"


# --- how it ended ------------------------------------------------------------------------------------


def _look_after(run: ScheduleRun, now: datetime) -> None:
    turn = run.turn or _found(run, now)
    if turn is None or turn.status not in ENDED:
        return
    if schedules.settle(run, ENDED[Turn.Status(turn.status)], turn.failure_code):
        tell_off(run.schedule, turn)


def _found(run: ScheduleRun, now: datetime) -> Turn | None:
    """The turn of a message that had to wait; a message that will have none settles its run."""
    sent = Message.objects.filter(session__owner=run.schedule.owner_id, run_id=_run_id(run))
    message = sent.select_related("turn").first()
    if message is None:
        if (now - run.created_at).total_seconds() > SENDING_SECONDS:
            schedules.settle(run, Outcome.FAILED, NEVER_SAID, counts=False)
        return None
    if message.dropped_at is not None:
        schedules.settle(run, Outcome.CANCELLED, TAKEN_BACK)
        return None
    if message.turn is not None:
        schedules.belongs(run, message.turn.pk)
    return message.turn


def tell_off(schedule: Schedule, turn: Turn | None) -> None:
    """Where its last run was, or would have been, stands why there will be no more (A26.3)."""
    if turn is None:
        last = ScheduleRun.objects.filter(schedule=schedule, turn__isnull=False).select_related("turn")
        newest = last.order_by("-pk").first()
        turn = newest.turn if newest is not None else None
    session_id = schedule.session_id or (turn.session_id if turn is not None else None)
    if session_id is None:
        session_id = sessions.create(schedule.owner_id, title=schedule.name).pk
    turn_id = turn.pk if turn is not None and turn.session_id == session_id else None
    row_id = history.post_notice(session_id, turn_id, "schedule_disabled")
    try:
        told = queries.notice_posted(row_id, "schedule_disabled")
        stream.publish_now(str(session_id), [(told, None)], user_id=schedule.owner_id)
    except RedisDown:
        log.warning("the event log is unreachable; clients will catch up from the rows")
