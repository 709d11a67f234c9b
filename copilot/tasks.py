"""The Celery door: ids in, one call out. A message is only a wake-up; the turn's row is the truth (T5.1)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import assert_never
from uuid import UUID

from celery import shared_task
from django.conf import settings
from kombu.exceptions import OperationalError

from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import service_bindings
from copilot.realtime import turn_queue

log = logging.getLogger(__name__)

PURGE_BATCH_SIZE = 500
LOST_CALLS_LOOKBACK = timedelta(days=1)
SCAN_RETRY_SECONDS = 30  # doubled with every failure
SIDE_QUESTION_EXPIRY_SECONDS = 30  # after which nobody waits for a worker to begin


@shared_task(name="copilot.tasks.run_turn", ignore_result=True)
def run_turn(turn_id: str) -> None:
    """Hand a turn to this process's event loop, and return (T5.2)."""
    from copilot.worker import turn_worker  # the worker's half: the web process never loads it

    turn_worker.accept_turn(UUID(turn_id))


@shared_task(name="copilot.tasks.purge_files", ignore_result=True)
def purge_files() -> None:
    """Files long in the trash and old tool outputs leave the storage, and give their room back (S4, A9.6)."""
    from copilot.files import services as files

    while files.purge_due_files(PURGE_BATCH_SIZE):
        pass


@shared_task(name="copilot.tasks.index_messages", ignore_result=True)
def index_messages() -> None:
    """What was said in turns that ended since can be found (W2.9)."""
    from copilot.chat import search

    while search.index_new_turns():
        pass


@shared_task(name="copilot.tasks.scan_file", ignore_result=True)
def scan_file(file_id: str) -> None:
    """One look at a file; a hook that fails is asked again, so often and no more (S4)."""
    from copilot.files import quarantine
    from copilot.files import services as files

    try:
        verdict = files.scan_file(UUID(file_id))
    except Exception as problem:  # the hook may be anybody's code
        log.warning("file %s could not be scanned: %s", file_id, type(problem).__name__)
        if (failures := files.record_scan_failure(UUID(file_id))) is not None:
            enqueue_scan(UUID(file_id), after_seconds=SCAN_RETRY_SECONDS * 2**failures)
        return
    if verdict == "infected":
        quarantine.notify_owner(UUID(file_id))


def enqueue_scan(file_id: UUID, *, after_seconds: int = 0) -> None:
    try:
        scan_file.apply_async(args=(str(file_id),), countdown=after_seconds, retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "the broker is unreachable, file %s waits for the sweep: %s", file_id, type(problem).__name__
        )


@shared_task(name="copilot.tasks.send_lost_scans", ignore_result=True)
def send_lost_scans() -> None:
    """Pending files that nobody looks at any more (S4)."""
    from copilot.files import services as files

    for file_id in files.list_lost_scans():
        enqueue_scan(file_id)


@shared_task(name="copilot.tasks.tend_storage", ignore_result=True)
def tend_storage() -> None:
    """Once a day: objects without rows, and rows without objects (S4)."""
    from copilot.files import reconciliation

    reconciliation.reconcile_storage()


@shared_task(name="copilot.tasks.purge_shares", ignore_result=True)
def purge_shares() -> None:
    """What shares published is emptied some time after they ended (S9)."""
    from copilot.sharing import services as sharing

    while sharing.purge_due_shares(PURGE_BATCH_SIZE):
        pass


@shared_task(name="copilot.tasks.purge_accounts", ignore_result=True)
def purge_accounts() -> None:
    """Forget old invitations, sign-ups that nobody approved in time, and records of old sign-ins."""
    from copilot.accounts import invitations, login_limits, sign_up

    invitations.purge_invitations()
    sign_up.purge_undecided_sign_ups()
    login_limits.purge_login_records()


@shared_task(name="copilot.tasks.mail_new_device", ignore_result=True)
def mail_new_device(device_id: str, address: str) -> None:
    from copilot.accounts import devices

    devices.send_new_device_email(UUID(device_id), address)


@shared_task(name="copilot.tasks.answer_aside", ignore_result=True)
def answer_aside(session_id: str, side_id: str) -> None:
    """Hand a question aside to this process's event loop, and return (A30.3)."""
    from copilot.worker import turn_worker

    turn_worker.answer_side_question(UUID(session_id), side_id)


def enqueue_side_question(session_id: UUID, side_id: str) -> bool:
    """False when no worker can be told: nobody is left waiting for what will not come."""
    try:
        answer_aside.apply_async(
            args=(str(session_id), side_id), retry=False, expires=SIDE_QUESTION_EXPIRY_SECONDS
        )
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, a question aside is refused: %s", type(problem).__name__)
        return False
    return True


@shared_task(name="copilot.tasks.tick", ignore_result=True)
def tick() -> None:
    """Once a minute: what is due by the clock (A26.3)."""
    from copilot.schedules import runner

    runner.run_due_schedules()


@shared_task(name="copilot.tasks.settle_calls", ignore_result=True)
def settle_calls() -> None:
    """Once an hour: calls of the last day that are still open, whenever they were made; the sweep looks at the latest (B4.1)."""
    from copilot.chat import model_calls

    while model_calls.record_forgotten_calls(turns_of=LOST_CALLS_LOOKBACK):
        pass


@shared_task(name="copilot.tasks.run_errand", ignore_result=True)
def run_errand(errand: service_bindings.BackgroundJob, turn_id: str) -> None:
    """What an ended turn left to be done: nobody waits for it, and a failure is ours alone (A3.7)."""
    from copilot.agent import goal_judgement, titles

    match errand:
        case "title":
            titles.name_session(UUID(turn_id))
        case "goal":
            goal_judgement.judge_goal(UUID(turn_id))
        case "compaction":
            service_bindings.compact_after_turn(UUID(turn_id))
        case unreachable:
            assert_never(unreachable)


def enqueue_background_job(errand: service_bindings.BackgroundJob, turn_id: UUID) -> None:
    """Lost with the broker, it is made up for by a later turn of the session."""
    try:
        run_errand.apply_async(args=(errand, str(turn_id)), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "the broker is unreachable, no %s for turn %s: %s", errand, turn_id, type(problem).__name__
        )


@shared_task(name="copilot.tasks.run_job", ignore_result=True)
def run_job(job: service_bindings.DataJob, job_id: str) -> None:
    """Work that has a row of its own: the message is only a wake-up (S15, S17)."""
    from copilot.accounts import deletion
    from copilot.exports import services as exports

    match job:
        case "export":
            exports.run_export(UUID(job_id))
        case "erasure":
            deletion.run_deletion(UUID(job_id))
        case unreachable:
            assert_never(unreachable)


def enqueue_data_job(job: service_bindings.DataJob, job_id: UUID) -> None:
    try:
        run_job.apply_async(args=(job, str(job_id)), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, an %s waits for its sweep: %s", job, type(problem).__name__)


@shared_task(name="copilot.tasks.look_after_jobs", ignore_result=True)
def look_after_jobs() -> None:
    """Once a minute: jobs that nobody took or that a worker left, what is due, and what has expired."""
    from copilot.accounts import deletion
    from copilot.exports import services as exports

    exports.sweep_exports()
    deletion.sweep_deletions()


@shared_task(name="copilot.tasks.purge_sessions", ignore_result=True)
def purge_sessions() -> None:
    """Sessions long in the trash go for good, with everything that was said in them (S17)."""
    from copilot.accounts import purge

    while purge.purge_trashed_sessions(PURGE_BATCH_SIZE):
        pass


def wake_worker(turn_id: UUID) -> None:
    """Wake a worker for a turn whose row stands; what is away costs time, not the turn (T9.2)."""
    if not uses_wakeup_list():
        enqueue_turn(turn_id)
        return
    try:
        turn_queue.push_wakeup(turn_id)
    except REDIS_OUTAGE_ERRORS as problem:
        log.warning(
            "no worker could be woken, turn %s waits for the sweep: %s", turn_id, type(problem).__name__
        )


def uses_wakeup_list() -> bool:
    return settings.TURN_WAKEUPS == "list"


def enqueue_turn(turn_id: UUID) -> None:
    """The long way, which needs nothing but Celery: for the sweep, and where TURN_WAKEUPS says so."""
    try:
        run_turn.apply_async(args=(str(turn_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "the broker is unreachable, turn %s waits for the sweep: %s", turn_id, type(problem).__name__
        )
