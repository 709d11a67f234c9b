"""Define copilot's Celery tasks: each takes ids and makes one call.

A task message is only a wake-up. The row is the truth, and a sweep sends lost messages again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, assert_never
from uuid import UUID

import structlog
from celery import shared_task
from django.conf import settings
from kombu.exceptions import OperationalError

from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.realtime import worker_signals

log = structlog.get_logger(__name__)

BackgroundJob = Literal["goal", "compaction"]  # what an ended turn leaves to do
DataJob = Literal["export", "deletion"]

PURGE_BATCH_SIZE = 500
LOST_CALLS_LOOKBACK = timedelta(days=1)
SCAN_RETRY_SECONDS = 30  # doubled after every failure
FOLLOW_UP_DELAY_SECONDS = 1.0
SIDE_QUESTION_EXPIRY_SECONDS = 30  # a side question that no worker has started by then is dropped


@shared_task(name="copilot.tasks.run_turn", ignore_result=True)
def run_turn(turn_id: str) -> None:
    from copilot.worker import turn_worker  # imported here because web processes must not load it

    turn_worker.accept_turn(UUID(turn_id))


@shared_task(name="copilot.tasks.purge_files", ignore_result=True)
def purge_files() -> None:
    """Delete old tool outputs and files that have been in the trash for long, and free their quota."""
    from copilot.files import services as files

    while files.purge_due_files(PURGE_BATCH_SIZE):
        pass


@shared_task(name="copilot.tasks.index_messages", ignore_result=True)
def index_messages() -> None:
    from copilot.chat import search

    while search.index_new_turns():
        pass


@shared_task(name="copilot.tasks.scan_file", ignore_result=True)
def scan_file(file_id: str) -> None:
    """Scan a file once. A scanner that fails is retried a few times."""
    from copilot.files import services as files
    from copilot.files import virus_scan

    try:
        verdict = files.scan_file(UUID(file_id))
    except Exception as problem:  # the scan hook is the operator's code and may raise anything
        log.warning("file_scan_failed", file_id=file_id, error_kind=type(problem).__name__)
        if (failures := files.record_scan_failure(UUID(file_id))) is not None:
            enqueue_scan(UUID(file_id), after_seconds=SCAN_RETRY_SECONDS * 2**failures)
        return
    if verdict == "infected":
        virus_scan.notify_owner(UUID(file_id))


def enqueue_scan(file_id: UUID, *, after_seconds: int = 0) -> None:
    try:
        scan_file.apply_async(args=(str(file_id),), countdown=after_seconds, retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "task_not_sent", task="scan_file", file_id=str(file_id), error_kind=type(problem).__name__
        )


@shared_task(name="copilot.tasks.resend_lost_scans", ignore_result=True)
def resend_lost_scans() -> None:
    """Enqueue pending scans again whose task was lost."""
    from copilot.files import services as files

    for file_id in files.list_lost_scans():
        enqueue_scan(file_id)


@shared_task(name="copilot.tasks.reconcile_storage", ignore_result=True)
def reconcile_storage() -> None:
    """Find stored objects without rows and rows without objects."""
    from copilot.files import quotas

    quotas.reconcile_storage()


@shared_task(name="copilot.tasks.purge_shares", ignore_result=True)
def purge_shares() -> None:
    """Empty the payloads of shares some time after they ended."""
    from copilot.sharing import services as sharing

    while sharing.purge_due_shares(PURGE_BATCH_SIZE):
        pass


@shared_task(name="copilot.tasks.purge_accounts", ignore_result=True)
def purge_accounts() -> None:
    """Delete old invitations, sign-ups that were not approved in time, and old sign-in records."""
    from copilot.accounts import invitations, login_limits, sign_up

    invitations.purge_invitations()
    sign_up.purge_undecided_sign_ups()
    login_limits.purge_login_records()


@shared_task(name="copilot.tasks.send_new_device_email", ignore_result=True)
def send_new_device_email(device_id: str, address: str) -> None:
    from copilot.accounts import devices

    devices.send_new_device_email(UUID(device_id), address)


@shared_task(name="copilot.tasks.answer_side_question", ignore_result=True)
def answer_side_question(session_id: str, side_id: str) -> None:
    from copilot.worker import turn_worker

    turn_worker.answer_side_question(UUID(session_id), side_id)


def enqueue_side_question(session_id: UUID, side_id: str) -> bool:
    """Enqueue a side question; False when the broker is down, so that the caller can refuse it at once."""
    try:
        answer_side_question.apply_async(
            args=(str(session_id), side_id), retry=False, expires=SIDE_QUESTION_EXPIRY_SECONDS
        )
    except (OperationalError, OSError) as problem:
        log.warning("task_not_sent", task="answer_side_question", error_kind=type(problem).__name__)
        return False
    return True


@shared_task(name="copilot.tasks.run_due_schedules", ignore_result=True)
def run_due_schedules() -> None:
    """Run the schedules that are due."""
    from copilot.schedules import runner

    runner.run_due_schedules()


@shared_task(name="copilot.tasks.record_forgotten_calls", ignore_result=True)
def record_forgotten_calls() -> None:
    """Record model calls of the last day whose cost nobody recorded. The sweep looks only at recent ones."""
    from copilot.chat import model_calls

    while model_calls.record_forgotten_calls(turns_of=LOST_CALLS_LOOKBACK):
        pass


@shared_task(name="copilot.tasks.run_background_job", ignore_result=True)
def run_background_job(job: BackgroundJob, turn_id: str) -> None:
    """Run a background job of an ended turn. Nobody waits for it."""
    from copilot.agent import goal_judgement
    from copilot.chat import compaction_requests

    match job:
        case "goal":
            goal_judgement.judge_goal(UUID(turn_id))
        case "compaction":
            compaction_requests.compact_after_turn(UUID(turn_id))
        case unreachable:
            assert_never(unreachable)


def enqueue_background_job(job: BackgroundJob, turn_id: UUID) -> None:
    """Enqueue a job of an ended turn. One that is lost is made up for after a later turn of the session."""
    try:
        run_background_job.apply_async(args=(job, str(turn_id)), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "task_not_sent",
            task="run_background_job",
            job=job,
            turn_id=str(turn_id),
            error_kind=type(problem).__name__,
        )


@shared_task(name="copilot.tasks.deliver_follow_ups", ignore_result=True)
def deliver_follow_ups(session_id: str) -> None:
    """Deliver the results of finished sub-sessions to the session that started them."""
    from copilot.chat import follow_ups

    follow_ups.deliver_follow_ups(UUID(session_id))


def enqueue_follow_ups(session_id: UUID) -> None:
    """Deliver results in a moment, so that those that end together arrive together. The sweep delivers lost ones."""
    try:
        deliver_follow_ups.apply_async(
            args=(str(session_id),), countdown=FOLLOW_UP_DELAY_SECONDS, retry=False
        )
    except (OperationalError, OSError) as problem:
        log.warning(
            "task_not_sent",
            task="deliver_follow_ups",
            session_id=str(session_id),
            error_kind=type(problem).__name__,
        )


@shared_task(name="copilot.tasks.run_data_job", ignore_result=True)
def run_data_job(job: DataJob, job_id: str) -> None:
    """Run an export or an account deletion, each of which has a row of its own."""
    from copilot.accounts import deletion
    from copilot.exports import services as exports

    match job:
        case "export":
            exports.run_export(UUID(job_id))
        case "deletion":
            deletion.run_deletion(UUID(job_id))
        case unreachable:
            assert_never(unreachable)


def enqueue_data_job(job: DataJob, job_id: UUID) -> None:
    try:
        run_data_job.apply_async(args=(job, str(job_id)), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "task_not_sent",
            task="run_data_job",
            job=job,
            job_id=str(job_id),
            error_kind=type(problem).__name__,
        )


@shared_task(name="copilot.tasks.sweep_data_jobs", ignore_result=True)
def sweep_data_jobs() -> None:
    """Resume exports and account deletions whose task or worker was lost, start due ones, and expire old exports."""
    from copilot.accounts import deletion
    from copilot.exports import services as exports

    exports.sweep_exports()
    deletion.sweep_deletions()


@shared_task(name="copilot.tasks.purge_sessions", ignore_result=True)
def purge_sessions() -> None:
    from copilot.accounts import purge

    while purge.purge_trashed_sessions(PURGE_BATCH_SIZE):
        pass


def wake_worker(turn_id: UUID) -> None:
    """Wake a worker for a turn whose row is committed. While Redis or the broker is down, the turn waits for the sweep."""
    if not uses_wakeup_list():
        enqueue_turn(turn_id)
        return
    try:
        worker_signals.push_wakeup(turn_id)
    except REDIS_OUTAGE_ERRORS as problem:
        log.warning("wakeup_not_sent", turn_id=str(turn_id), error_kind=type(problem).__name__)


def uses_wakeup_list() -> bool:
    return settings.TURN_WAKEUPS == "list"


def enqueue_turn(turn_id: UUID) -> None:
    """Send a turn through Celery instead of the list of wake-ups. For the sweep, and where TURN_WAKEUPS says so."""
    try:
        run_turn.apply_async(args=(str(turn_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("task_not_sent", task="run_turn", turn_id=str(turn_id), error_kind=type(problem).__name__)
