"""What an erasure says and leaves: two mails, a pseudonym and a line in the record (S17)."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.mail import send_mail
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from config.core.audit import record_audit_event
from config.core.errors import Conflict, StorageUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics
from copilot.accounts import api_keys, purge
from copilot.chat import service_bindings
from copilot.models import ErasureJob, Message, Session, Turn
from copilot.realtime import event_log
from copilot.realtime.events import AccountClosed
from copilot.schedules import services as schedules
from copilot.sharing import services as sharing

log = logging.getLogger(__name__)


def anonymize_user(user: User) -> None:
    """The row stays, for the ledger names it; who it was does not."""
    user.username = f"erased-{user.pk}"
    user.email = user.first_name = user.last_name = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login = None
    user.set_unusable_password()
    user.save()
    user.groups.clear()
    user.user_permissions.clear()


def record_completion(job: ErasureJob) -> None:
    """For auditors: that it was done, when, and how much; nothing of what it was."""
    LogEntry.objects.create(
        user_id=job.user_id,
        content_type=ContentType.objects.get_for_model(ErasureJob),
        object_id=str(job.pk),
        object_repr=f"erased-{job.user_id}",
        action_flag=DELETION,
        change_message=f"Account erased; removed by step: {job.progress}",
    )


def send_requested_email(address: str, due_at: datetime) -> None:
    _send_email(
        address,
        _("Your Pilothouse account will be erased"),
        _(
            "You asked us to erase your account. It is shut now, and will be erased on {date} (UTC).\n\n"
            "If you want to keep it, sign in before then: {url}\n"
        ).format(date=f"{due_at:%Y-%m-%d %H:%M}", url=f"{settings.SITE_URL}/accounts/login/"),
    )


def send_done_email(address: str) -> None:
    _send_email(
        address,
        _("Your Pilothouse account was erased"),
        _("Your conversations, files and settings were erased. Thank you for having been with us.\n"),
    )


def _send_email(address: str, subject: str, body: str) -> None:
    """A mail that cannot be sent stops nothing."""
    if not address:
        return
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, [address])
    except (smtplib.SMTPException, OSError) as problem:
        log.warning("a mail about an erasure could not be sent: %s", type(problem).__name__)


# MERGED workspace.erasure: An account given up: shut at once, erased after a time of grace; the only writer of ErasureJob (S17).

JOB_LEASE = timedelta(minutes=5)  # longer than a batch takes; a worker that died is followed after it
MAX_RETRY_DAYS = 7  # retried so long; then staff must look, and it is tried once a day
MAX_RETRY_DELAY = timedelta(hours=1)
MAX_PURGE_ROUNDS = 3  # what was written while the steps ran is found by going through them again
DISABLED_REASON = "The account is being erased."
CLOSED_PHASE = "closed"  # the phase of a job that has only its grace to wait for

PurgeStep = Callable[[int], int | None]


# --- asking, and taking it back ----------------------------------------------------------------------


def request_deletion(user: User, *, password: str = "") -> ErasureJob:
    """Shut the account now, and have it erased after the time of grace. Who asks has been asked back.

    With a new salt or no password every session cookie dies, for good: coming back means logging in.
    """
    with transaction.atomic():
        held = User.objects.select_for_update().get(pk=user.pk)  # waits for whatever is being written
        if find_pending_deletion(user.pk) is not None:
            raise Conflict("This account is being erased already.", code="already_requested")
        job = ErasureJob.objects.create(
            user=held, due_at=timezone.now() + timedelta(days=settings.ERASURE_GRACE_DAYS)
        )
        if password:
            held.set_password(password)
        else:
            held.set_unusable_password()
        held.is_active = False
        held.save(update_fields=["password", "is_active"])
        sharing.revoke_all_shares(held.pk)
        api_keys.erase_api_keys(held.pk)
        schedules.disable_all_schedules(held.pk, DISABLED_REASON)
        record_audit_event("account.deletion_requested", actor=user, target=("user", user.pk))
        transaction.on_commit(lambda: _after_request(job, held))
    return job


def _after_request(job: ErasureJob, user: User) -> None:
    _close_access(job)
    try:
        event_log.append_events(str(job.pk), [(AccountClosed(), None)], user_id=user.pk)
    except REDIS_OUTAGE_ERRORS:
        log.warning("open sockets of a shut account could not be told; they can write nothing")
    send_requested_email(user.email, job.due_at)
    metrics.erasures.labels("requested").inc()


def _close_access(job: ErasureJob) -> None:
    """What is not in our rows. Until all of it is closed somebody comes back every minute, and once more at the erasure."""
    _stop_all_sessions(job.user_id)
    if _close_elsewhere(job.user_id):
        _jobs_to_close().filter(pk=job.pk).update(phase=CLOSED_PHASE)


def _jobs_to_close() -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(phase="", started_at=None, cancelled_at=None, finished_at=None)


def _stop_all_sessions(user_id: int) -> None:
    own = Session.objects.filter(owner=user_id)
    runs = Turn.objects.filter(session__in=own, status__in=Turn.UNFINISHED).values("session")
    waits = Message.objects.filter(session__in=own, sequence=None, dropped_at=None).values("session")
    for session_id in own.filter(Q(pk__in=runs) | Q(pk__in=waits)).values_list("pk", flat=True):
        service_bindings.end_session_activity(session_id)


def _close_elsewhere(user_id: int) -> bool:
    """Links, bots and subscriptions of the apps above and below (ERASURE_CLOSINGS); one that fails stops no other."""
    called = [_try_closing(name, user_id) for name in settings.ERASURE_CLOSINGS]
    return all(called)


def _try_closing(name: str, user_id: int) -> bool:
    try:
        import_string(name)(user_id)
    except Exception:
        log.exception("%s failed; it is called again in a minute", name)
        return False
    return True


def cancel_deletion(user: User) -> bool:
    """The person has come back in time: the account is theirs again. What was revoked stays revoked."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if not _pending_jobs(user.pk).filter(started_at=None).update(cancelled_at=Now()):
            return False
        User.objects.filter(pk=user.pk).update(is_active=True)
        record_audit_event("account.deletion_cancelled", actor=user, target=("user", user.pk))
    user.is_active = True
    metrics.erasures.labels("cancelled").inc()
    return True


def find_pending_deletion(user_id: int) -> ErasureJob | None:
    return _pending_jobs(user_id).first()


def can_cancel_deletion(user_id: int) -> bool:
    """Whether signing in would still take it back."""
    return _pending_jobs(user_id).filter(started_at=None).exists()


def _pending_jobs(user_id: int) -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(user=user_id, cancelled_at=None, finished_at=None)


# --- the job -----------------------------------------------------------------------------------------


def sweep_deletions(limit: int = 50) -> None:
    """Once a minute: what is due, what a worker left, what waited for the storage, and what is not closed yet."""
    for jobs in (_due_jobs(), _jobs_to_close().filter(due_at__gt=Now())):
        for job_id in jobs.order_by("due_at").values_list("pk", flat=True)[:limit]:
            service_bindings.enqueue_data_job("erasure", job_id)


def _due_jobs() -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(
        Q(next_try_at=None) | Q(next_try_at__lte=Now()),
        due_at__lte=Now(),
        cancelled_at=None,
        finished_at=None,
    )


def run_deletion(job_id: UUID) -> None:
    """Go on where the last worker stopped; every step may be done twice."""
    claimed = (
        _due_jobs()
        .filter(pk=job_id)
        .update(
            started_at=Coalesce("started_at", Now()),
            next_try_at=Now() + JOB_LEASE,
            attempts=F("attempts") + 1,
        )
    )
    if not claimed:
        for job in _jobs_to_close().filter(pk=job_id):
            _close_access(job)
        return
    job = ErasureJob.objects.select_related("user").get(pk=job_id)
    try:
        _purge_account(job)
    except StorageUnavailable:
        _schedule_retry(job, "storage_unavailable")
    except (OperationalError, InterfaceError, *REDIS_OUTAGE_ERRORS) as problem:
        log.warning("an erasure met an unavailable server: %s", type(problem).__name__)
        _schedule_retry(job, "server_unavailable")


class _JobTakenOver(Exception):
    """Another worker has the job by now."""


def _purge_account(job: ErasureJob) -> None:
    steps = _list_steps()
    names = list(steps)
    begin = names.index(job.phase) if job.phase in steps else 0
    try:
        for _ in range(MAX_PURGE_ROUNDS):
            for name in names[begin:]:
                _run_step(job, name, steps[name])
            begin = 0
            if not (left := purge.count_leftovers(job.user_id)):
                _finish_job(job)
                return
        log.error("an erasure leaves rows behind: %s", left)
        _schedule_retry(job, "left_over")
    except _JobTakenOver:
        log.info("an erasure goes on elsewhere")


def _list_steps() -> dict[str, PurgeStep]:
    """Ours, then those of other apps; what was shut at the request is shut again first."""
    ours = {f"{step.__module__}.{step.__name__}": step for step in purge.PURGE_STEPS}
    closings = {name: import_string(name) for name in settings.ERASURE_CLOSINGS}
    return closings | ours | {name: import_string(name) for name in settings.ERASURE_STEPS}


def _run_step(job: ErasureJob, name: str, step: PurgeStep) -> None:
    _record_progress(job, name, 0)
    while removed := step(job.user_id):
        _record_progress(job, name, removed)


def _record_progress(job: ErasureJob, name: str, removed: int) -> None:
    """Where the job is, and that its worker lives."""
    job.progress[name] = job.progress.get(name, 0) + removed
    mine = ErasureJob.objects.filter(pk=job.pk, attempts=job.attempts, finished_at=None)
    if not mine.update(phase=name, progress=job.progress, error="", next_try_at=Now() + JOB_LEASE):
        raise _JobTakenOver


def _schedule_retry(job: ErasureJob, code: str) -> None:
    """Twice as long each time, up to an hour; what does not get better in a week is for staff to see."""
    pause = min(timedelta(minutes=1) * 2 ** min(job.attempts, 10), MAX_RETRY_DELAY)
    started = job.started_at
    if started is not None and timezone.now() - started > timedelta(days=MAX_RETRY_DAYS):
        log.error("an erasure cannot be finished for a week: %s", code)
        pause = timedelta(days=1)
    ErasureJob.objects.filter(pk=job.pk, attempts=job.attempts).update(error=code, next_try_at=Now() + pause)


def _finish_job(job: ErasureJob) -> None:
    """Nothing is left: the name goes, the last word is said, and the record of it stays."""
    address = job.user.email
    with transaction.atomic():
        anonymize_user(job.user)
        record_completion(job)
        ErasureJob.objects.filter(pk=job.pk).update(finished_at=Now(), phase="", error="", next_try_at=None)
        send_done_email(address)  # before the commit: said twice at worst, never not at all
    metrics.erasures.labels("finished").inc()
