"""Delete accounts: close access at once, purge after a grace period, and leave a pseudonym.

The only writer of AccountDeletion.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.conf import settings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.subscriptions.plan_changes import erase_subscription
from billing.top_ups.auto_top_ups import erase_auto_top_up
from config.core.audit import record_audit_event
from config.core.emails import send_email
from config.core.errors import Conflict, StorageUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics, signals, tasks
from copilot.accounts import api_keys, purge
from copilot.chat.stop import end_session_activity
from copilot.models import AccountDeletion, Message, Session, Turn
from copilot.realtime import event_log
from copilot.realtime.events import AccountClosed
from copilot.schedules import services as schedules
from copilot.sharing import services as sharing

log = structlog.get_logger(__name__)


def anonymize_user(user: User) -> None:
    """Keep the row, because the ledger refers to it, but remove everything personal from it."""
    user.username = f"erased-{user.pk}"
    user.email = user.first_name = user.last_name = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login = None
    user.set_unusable_password()
    user.save()
    user.groups.clear()
    user.user_permissions.clear()


def record_completion(job: AccountDeletion) -> None:
    """Record for auditors that it was done, when and how much, but nothing of the content."""
    LogEntry.objects.create(
        user_id=job.user_id,
        content_type=ContentType.objects.get_for_model(AccountDeletion),
        object_id=str(job.pk),
        object_repr=f"erased-{job.user_id}",
        action_flag=DELETION,
        change_message=f"Account deleted; removed by step: {job.progress}",
    )


def send_requested_email(address: str, due_at: datetime) -> None:
    send_email(
        [address],
        _("Your Pilothouse account will be deleted"),
        _(
            "You asked us to delete your account. It is closed now and will be deleted on {date} (UTC).\n\n"
            "If you want to keep it, sign in before then: {url}\n"
        ).format(date=f"{due_at:%Y-%m-%d %H:%M}", url=f"{settings.SITE_URL}/accounts/login/"),
    )


def send_done_email(address: str) -> None:
    send_email(
        [address],
        _("Your Pilothouse account was deleted"),
        _("Your chats, files and settings were deleted. Thanks for using Pilothouse.\n"),
    )


# --- Jobs --------------------------------------------------------------------------------------------

JOB_LEASE = timedelta(minutes=5)  # longer than a batch takes; then another worker may take over
MAX_RETRY_DAYS = 7  # then staff is alerted, and it is tried once a day
MAX_RETRY_DELAY = timedelta(hours=1)
MAX_PURGE_ROUNDS = 3  # another round finds what was written while the steps ran
DISABLED_REASON = "The account is scheduled for deletion."
CLOSED_PHASE = "closed"  # all access is closed; only the grace period is left

PurgeStep = Callable[[int], int | None]


# --- Request and cancel ------------------------------------------------------------------------------


def request_deletion(user: User, *, password: str = "") -> AccountDeletion:
    """Close the account now and schedule its purge after the grace period. The caller has asked for
    confirmation.

    A new salt or an unusable password invalidates every session cookie for good, so coming back means signing
    in.
    """
    with transaction.atomic():
        locked_user = User.objects.select_for_update().get(pk=user.pk)  # waits for writes in progress
        if find_pending_deletion(user.pk) is not None:
            raise Conflict("This account is already scheduled for deletion.", code="already_requested")
        job = AccountDeletion.objects.create(
            user=locked_user, due_at=timezone.now() + timedelta(days=settings.ACCOUNT_DELETION_GRACE_DAYS)
        )
        if password:
            locked_user.set_password(password)
        else:
            locked_user.set_unusable_password()
        locked_user.is_active = False
        locked_user.save(update_fields=["password", "is_active"])
        sharing.revoke_all_shares(locked_user.pk)
        api_keys.erase_api_keys(locked_user.pk)
        schedules.disable_all_schedules(locked_user.pk, DISABLED_REASON)
        record_audit_event("account.deletion_requested", actor=user, target=("user", user.pk))
        transaction.on_commit(lambda: _after_request(job, locked_user))
    return job


def _after_request(job: AccountDeletion, user: User) -> None:
    _close_access(job)
    try:
        event_log.append_events(str(job.pk), [(AccountClosed(), None)], user_id=user.pk)
    except REDIS_OUTAGE_ERRORS:
        # Open sockets of the account stay open, but they cannot write anything.
        log.warning("account_closed_event_not_published", user_id=user.pk)
    send_requested_email(user.email, job.due_at)
    metrics.account_deletions.labels("requested").inc()


def _close_access(job: AccountDeletion) -> None:
    """Close what is not in our own rows. The sweep repeats it every minute until all of it is closed."""
    _stop_all_sessions(job.user_id)
    if _close_elsewhere(job.user_id):
        _jobs_to_close().filter(pk=job.pk).update(phase=CLOSED_PHASE)


def _jobs_to_close() -> QuerySet[AccountDeletion]:
    return AccountDeletion.objects.filter(phase="", started_at=None, cancelled_at=None, finished_at=None)


def _stop_all_sessions(user_id: int) -> None:
    own = Session.objects.filter(owner=user_id)
    with_turns = Turn.objects.unfinished().filter(session__in=own).values("session")
    with_queue = Message.objects.queued().filter(session__in=own).values("session")
    for session_id in own.filter(Q(pk__in=with_turns) | Q(pk__in=with_queue)).values_list("pk", flat=True):
        end_session_activity(session_id)


def close_other_apps(user_id: int) -> int:
    return _send_to_other_apps(signals.account_closing, user_id)


def purge_other_apps(user_id: int) -> int:
    return _send_to_other_apps(signals.account_purging, user_id)


def _send_to_other_apps(signal: Signal, user_id: int) -> int:
    """Call all receivers, then raise the first failure; return how many rows they removed together."""
    removed = 0
    failures: list[Exception] = []
    for _receiver, answer in signal.send_robust(sender=User, user_id=user_id):
        if isinstance(answer, Exception):
            failures.append(answer)
        else:
            removed += answer or 0
    if failures:
        raise failures[0]
    return removed


# They run at the request, and once more before the purge.
CLOSING_STEPS: tuple[PurgeStep, ...] = (close_other_apps, erase_auto_top_up, erase_subscription)


def _close_elsewhere(user_id: int) -> bool:
    """Close links, bots and subscriptions; one failure stops no other step."""
    results = [_try_closing(step, user_id) for step in CLOSING_STEPS]
    return all(results)


def _try_closing(step: PurgeStep, user_id: int) -> bool:
    try:
        step(user_id)
    except Exception:
        log.exception("account_closing_failed", step=_name_step(step), user_id=user_id)
        return False
    return True


def cancel_deletion(user: User) -> bool:
    """Reactivate an account whose owner came back in time. Revoked shares and keys stay revoked."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if not _pending_jobs(user.pk).filter(started_at=None).update(cancelled_at=Now()):
            return False
        User.objects.filter(pk=user.pk).update(is_active=True)
        record_audit_event("account.deletion_cancelled", actor=user, target=("user", user.pk))
    user.is_active = True
    metrics.account_deletions.labels("cancelled").inc()
    return True


def find_pending_deletion(user_id: int) -> AccountDeletion | None:
    return _pending_jobs(user_id).first()


def can_cancel_deletion(user_id: int) -> bool:
    return _pending_jobs(user_id).filter(started_at=None).exists()


def _pending_jobs(user_id: int) -> QuerySet[AccountDeletion]:
    return AccountDeletion.objects.filter(user=user_id, cancelled_at=None, finished_at=None)


# --- Run ---------------------------------------------------------------------------------------------


def sweep_deletions(limit: int = 50) -> None:
    """Enqueue jobs that are due, were abandoned or wait for a retry, and those that are not closed yet."""
    for jobs in (_due_jobs(), _jobs_to_close().filter(due_at__gt=Now())):
        for job_id in jobs.order_by("due_at").values_list("pk", flat=True)[:limit]:
            tasks.enqueue_data_job("deletion", job_id)


def _due_jobs() -> QuerySet[AccountDeletion]:
    return AccountDeletion.objects.filter(
        Q(next_try_at=None) | Q(next_try_at__lte=Now()),
        due_at__lte=Now(),
        cancelled_at=None,
        finished_at=None,
    )


def run_deletion(job_id: UUID) -> None:
    """Continue where the last worker stopped. Every step may run twice."""
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
    job = AccountDeletion.objects.select_related("user").get(pk=job_id)
    try:
        _purge_account(job)
    except StorageUnavailable:
        _schedule_retry(job, "storage_unavailable")
    except (OperationalError, InterfaceError, *REDIS_OUTAGE_ERRORS) as problem:
        log.warning("account_purge_interrupted", job_id=str(job.pk), error_kind=type(problem).__name__)
        _schedule_retry(job, "server_unavailable")


class _JobTakenOver(Exception):
    """Another worker runs the job by now."""


def _purge_account(job: AccountDeletion) -> None:
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
        log.error("account_purge_left_rows", job_id=str(job.pk), leftovers=left)
        _schedule_retry(job, "left_over")
    except _JobTakenOver:
        log.info("account_purge_taken_over", job_id=str(job.pk))


def _list_steps() -> dict[str, PurgeStep]:
    """Return the steps by name; the closing steps run again first."""
    return {_name_step(step): step for step in (*CLOSING_STEPS, *purge.PURGE_STEPS, purge_other_apps)}


def _name_step(step: PurgeStep) -> str:
    return f"{step.__module__}.{step.__name__}"


def _run_step(job: AccountDeletion, name: str, step: PurgeStep) -> None:
    _record_progress(job, name, 0)
    while removed := step(job.user_id):
        _record_progress(job, name, removed)


def _record_progress(job: AccountDeletion, name: str, removed: int) -> None:
    job.progress[name] = job.progress.get(name, 0) + removed
    own_job = AccountDeletion.objects.filter(pk=job.pk, attempts=job.attempts, finished_at=None)
    if not own_job.update(phase=name, progress=job.progress, error="", next_try_at=Now() + JOB_LEASE):
        raise _JobTakenOver


def _schedule_retry(job: AccountDeletion, code: str) -> None:
    """Back off exponentially up to an hour. After a week staff is alerted."""
    pause = min(timedelta(minutes=1) * 2 ** min(job.attempts, 10), MAX_RETRY_DELAY)
    started = job.started_at
    if started is not None and timezone.now() - started > timedelta(days=MAX_RETRY_DAYS):
        log.error("account_purge_stuck", job_id=str(job.pk), code=code)
        pause = timedelta(days=1)
    AccountDeletion.objects.filter(pk=job.pk, attempts=job.attempts).update(
        error=code, next_try_at=Now() + pause
    )


def _finish_job(job: AccountDeletion) -> None:
    address = job.user.email
    with transaction.atomic():
        anonymize_user(job.user)
        record_completion(job)
        AccountDeletion.objects.filter(pk=job.pk).update(
            finished_at=Now(), phase="", error="", next_try_at=None
        )
        send_done_email(address)  # before the commit: sent twice at worst, but never lost
    metrics.account_deletions.labels("finished").inc()
