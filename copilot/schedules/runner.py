"""Start due schedules and record how their runs ended."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import structlog

from config.core.errors import RequestRefused, ServiceUnavailable, TooManyRequests
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agents import services as agents
from copilot.chat import messages, sessions
from copilot.chat import selectors as chat_selectors
from copilot.chat.admission import submit_message
from copilot.chat.admission_outcomes import SubmissionQueued, SubmissionStarted
from copilot.chat.commands import SendMessage, clean_text
from copilot.chat.permissions import UNRESTRICTED, Permissions, intersect_permissions
from copilot.chat.turn_context import InboundContext
from copilot.models import Message, Schedule, ScheduleRun, Turn
from copilot.realtime import event_log
from copilot.schedules import services as schedules

log = structlog.get_logger(__name__)

STILL_RUNNING_REASON = "The previous run was still in progress."
WITHDRAWN_REASON = "Its message was removed from the queue."
NEVER_SENT_REASON = "Its message was never sent."
RunOutcome = ScheduleRun.Outcome
OUTCOME_BY_STATUS = {
    Turn.Status.SUCCEEDED: RunOutcome.SUCCEEDED,
    Turn.Status.FAILED: RunOutcome.FAILED,
    Turn.Status.CANCELLED: RunOutcome.CANCELLED,
}
SEND_TIMEOUT_SECONDS = 300  # a run without a message after this long was lost with its worker


def run_due_schedules(now: datetime | None = None) -> int:
    """Record ended runs, then start what is due, and return how many were started. Runs once a minute."""
    now = now or datetime.now(UTC)
    for run in schedules.list_runs_to_finish():
        _record_end(run, now)
    return sum(_claim_and_start(schedule, now) for schedule in schedules.list_due_schedules(now))


def _claim_and_start(schedule: Schedule, now: datetime) -> bool:
    """Claim one schedule at a time: if this one fails, the others stay due."""
    try:
        run = schedules.claim_run(schedule, now)
    except RequestRefused as refusal:  # its expression or zone is no longer valid
        if schedules.disable_schedule(schedule.pk, refusal.message):
            post_disabled_notice(schedule, None)
        return False
    return run is not None and _start_run(schedule, run)


def run_schedule_now(owner_id: int, schedule_id: UUID) -> ScheduleRun:
    """Start a run at once, also of a paused schedule. Refuse it while another one is in progress."""
    schedule = schedules.get_schedule(owner_id, schedule_id)
    run = schedules.create_manual_run(schedule)
    _start_run(schedule, run)
    run.refresh_from_db()
    return run


def _start_run(schedule: Schedule, run: ScheduleRun) -> bool:
    if schedules.has_earlier_run(run):
        schedules.record_outcome(run, RunOutcome.SKIPPED, STILL_RUNNING_REASON)
        return False
    try:
        outcome = _submit_prompt(schedule, run)
    except RequestRefused as refusal:
        log.warning("scheduled_run_refused", schedule_id=str(schedule.pk), code=refusal.code)
        # A reached limit or an unavailable server is temporary and not the task's fault.
        counts = not isinstance(refusal, TooManyRequests | ServiceUnavailable)
        if schedules.record_outcome(run, RunOutcome.REFUSED, refusal.code, counts=counts):
            post_disabled_notice(schedule, None)
        return False
    if isinstance(outcome, SubmissionStarted):
        schedules.attach_turn(run, outcome.turn_id)
    return True


def _submit_prompt(schedule: Schedule, run: ScheduleRun) -> SubmissionStarted | SubmissionQueued:
    """Submit the prompt like any other message, with the stored permissions that are still valid."""
    session_id, text, version = schedule.session_id, schedule.prompt, None
    if schedule.agent_id is not None:  # the current version: edits count from the next run on
        version = agents.get_version(schedule.owner_id, schedule.agent_id)
        text = agents.build_run_prompt(version, schedule.inputs)
    fresh = None
    if session_id is None:
        fresh = sessions.create_session(schedule.owner_id, title=schedule.name, agent_version=version)
    try:
        return submit_message(
            SendMessage(
                user_id=schedule.owner_id,
                session_id=session_id or fresh.pk,  # type: ignore[union-attr]
                text=clean_text(text),
                origin="schedule",
                permissions=intersect_permissions(Permissions.from_json(schedule.permissions), UNRESTRICTED),
                tier=version.tier if version is not None else "",
                run_id=_make_run_id(run),
                author=schedule.name,
                inbound_context=msgspec.convert(schedule.inbound_context, InboundContext),
            )
        )
    except RequestRefused:
        if fresh is not None:
            sessions.delete_session(schedule.owner_id, fresh.pk)
        raise


def _make_run_id(run: ScheduleRun) -> str:
    """Make an idempotency key, so that a run is one turn however often it is submitted."""
    return f"schedule-{run.pk}"


# --- Outcomes ----------------------------------------------------------------------------------------


def _record_end(run: ScheduleRun, now: datetime) -> None:
    turn = run.turn or _find_turn(run, now)
    if turn is None or turn.status not in OUTCOME_BY_STATUS:
        return
    if schedules.record_outcome(run, OUTCOME_BY_STATUS[Turn.Status(turn.status)], turn.failure_code):
        post_disabled_notice(run.schedule, turn)


def _find_turn(run: ScheduleRun, now: datetime) -> Turn | None:
    """Find the turn of a queued message. A message that will have none ends the run."""
    messages_sent = Message.objects.filter(session__owner=run.schedule.owner_id, run_id=_make_run_id(run))
    message = messages_sent.select_related("turn").first()
    if message is None:
        if (now - run.created_at).total_seconds() > SEND_TIMEOUT_SECONDS:
            schedules.record_outcome(run, RunOutcome.FAILED, NEVER_SENT_REASON, counts=False)
        return None
    if message.dropped_at is not None:
        schedules.record_outcome(run, RunOutcome.CANCELLED, WITHDRAWN_REASON)
        return None
    if message.turn is not None:
        schedules.attach_turn(run, message.turn.pk)
    return message.turn


def post_disabled_notice(schedule: Schedule, turn: Turn | None) -> None:
    """Post why there will be no more runs in the session of the last run."""
    if turn is None:
        last = ScheduleRun.objects.filter(schedule=schedule, turn__isnull=False).select_related("turn")
        newest = last.order_by("-pk").first()
        turn = newest.turn if newest is not None else None
    session_id = schedule.session_id or (turn.session_id if turn is not None else None)
    if session_id is None:
        session_id = sessions.create_session(schedule.owner_id, title=schedule.name).pk
    turn_id = turn.pk if turn is not None and turn.session_id == session_id else None
    row_id = messages.post_notice(session_id, turn_id, "schedule_disabled")
    try:
        event = chat_selectors.build_notice_posted(row_id, "schedule_disabled")
        event_log.append_events(str(session_id), [(event, None)], user_id=schedule.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("schedule_notice_not_published", schedule_id=str(schedule.pk))
