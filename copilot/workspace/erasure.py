"""An account given up: shut at once, erased after a time of grace; the only writer of ErasureJob (S17)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from django.utils.module_loading import import_string

from config.core.audit import record_audit_event
from copilot import api_keys, metrics, ports, schedules
from copilot.errors import Conflict, StorageUnavailable
from copilot.events import AccountClosed
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import ErasureJob, Message, Session, Turn
from copilot.workspace import clearing, farewells, shares

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)  # longer than a batch takes; a worker that died is followed after it
STORAGE_DAYS = 7  # retried so long; then staff must look, and it is tried once a day
LONGEST_PAUSE = timedelta(hours=1)
ROUNDS = 3  # what was written while the steps ran is found by going through them again
SHUT = "The account is being erased."
CLOSED = "closed"  # the phase of a job that has only its grace to wait for

Step = Callable[[int], int | None]


# --- asking, and taking it back ----------------------------------------------------------------------


def request(user: User, *, password: str = "") -> ErasureJob:
    """Shut the account now, and have it erased after the time of grace. Who asks has been asked back.

    With a new salt or no password every session cookie dies, for good: coming back means logging in.
    """
    with transaction.atomic():
        held = User.objects.select_for_update().get(pk=user.pk)  # waits for whatever is being written
        if standing(user.pk) is not None:
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
        shares.revoke_all(held.pk)
        api_keys.erase(held.pk)
        schedules.switch_off_all(held.pk, SHUT)
        record_audit_event("account.deletion_requested", actor=user, target=("user", user.pk))
        transaction.on_commit(lambda: _shut(job, held))
    return job


def _shut(job: ErasureJob, user: User) -> None:
    _close(job)
    try:
        stream.publish_now(str(job.pk), [(AccountClosed(), None)], user_id=user.pk)
    except RedisDown:
        log.warning("open sockets of a shut account could not be told; they can write nothing")
    farewells.say_requested(user.email, job.due_at)
    metrics.erasures.labels("requested").inc()


def _close(job: ErasureJob) -> None:
    """What is not in our rows. Until all of it is closed somebody comes back every minute, and once more at the erasure."""
    _halt_all(job.user_id)
    if _is_closed_elsewhere(job.user_id):
        _unclosed().filter(pk=job.pk).update(phase=CLOSED)


def _unclosed() -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(phase="", started_at=None, cancelled_at=None, finished_at=None)


def _halt_all(user_id: int) -> None:
    own = Session.objects.filter(owner=user_id)
    runs = Turn.objects.filter(session__in=own, status__in=Turn.UNFINISHED).values("session")
    waits = Message.objects.filter(session__in=own, sequence=None, dropped_at=None).values("session")
    for session_id in own.filter(Q(pk__in=runs) | Q(pk__in=waits)).values_list("pk", flat=True):
        ports.halt(session_id)


def _is_closed_elsewhere(user_id: int) -> bool:
    """Links, bots and subscriptions of the apps above and below (ERASURE_CLOSINGS); one that fails stops no other."""
    called = [_is_called(name, user_id) for name in settings.ERASURE_CLOSINGS]
    return all(called)


def _is_called(name: str, user_id: int) -> bool:
    try:
        import_string(name)(user_id)
    except Exception:
        log.exception("%s failed; it is called again in a minute", name)
        return False
    return True


def cancel(user: User) -> bool:
    """The person has come back in time: the account is theirs again. What was revoked stays revoked."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if not _standing(user.pk).filter(started_at=None).update(cancelled_at=Now()):
            return False
        User.objects.filter(pk=user.pk).update(is_active=True)
        record_audit_event("account.deletion_cancelled", actor=user, target=("user", user.pk))
    user.is_active = True
    metrics.erasures.labels("cancelled").inc()
    return True


def standing(user_id: int) -> ErasureJob | None:
    return _standing(user_id).first()


def may_return(user_id: int) -> bool:
    """Whether signing in would still take it back."""
    return _standing(user_id).filter(started_at=None).exists()


def _standing(user_id: int) -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(user=user_id, cancelled_at=None, finished_at=None)


# --- the job -----------------------------------------------------------------------------------------


def look_after(limit: int = 50) -> None:
    """Once a minute: what is due, what a worker left, what waited for the storage, and what is not closed yet."""
    for jobs in (_due(), _unclosed().filter(due_at__gt=Now())):
        for job_id in jobs.order_by("due_at").values_list("pk", flat=True)[:limit]:
            ports.send_job("erasure", job_id)


def _due() -> QuerySet[ErasureJob]:
    return ErasureJob.objects.filter(
        Q(next_try_at=None) | Q(next_try_at__lte=Now()),
        due_at__lte=Now(),
        cancelled_at=None,
        finished_at=None,
    )


def run(job_id: UUID) -> None:
    """Go on where the last worker stopped; every step may be done twice."""
    claimed = (
        _due()
        .filter(pk=job_id)
        .update(
            started_at=Coalesce("started_at", Now()), next_try_at=Now() + LEASE, attempts=F("attempts") + 1
        )
    )
    if not claimed:
        for job in _unclosed().filter(pk=job_id):
            _close(job)
        return
    job = ErasureJob.objects.select_related("user").get(pk=job_id)
    try:
        _erase(job)
    except StorageUnavailable:
        _wait(job, "storage_unavailable")
    except (OperationalError, InterfaceError, *RedisDown) as problem:
        log.warning("an erasure met an unavailable server: %s", type(problem).__name__)
        _wait(job, "server_unavailable")


class _Overtaken(Exception):
    """Another worker has the job by now."""


def _erase(job: ErasureJob) -> None:
    steps = _steps()
    names = list(steps)
    begin = names.index(job.phase) if job.phase in steps else 0
    try:
        for _ in range(ROUNDS):
            for name in names[begin:]:
                _go_through(job, name, steps[name])
            begin = 0
            if not (left := clearing.left_over(job.user_id)):
                _finish(job)
                return
        log.error("an erasure leaves rows behind: %s", left)
        _wait(job, "left_over")
    except _Overtaken:
        log.info("an erasure goes on elsewhere")


def _steps() -> dict[str, Step]:
    """Ours, then those of other apps; what was shut at the request is shut again first."""
    ours = {f"{step.__module__}.{step.__name__}": step for step in clearing.STEPS}
    closings = {name: import_string(name) for name in settings.ERASURE_CLOSINGS}
    return closings | ours | {name: import_string(name) for name in settings.ERASURE_STEPS}


def _go_through(job: ErasureJob, name: str, step: Step) -> None:
    _note(job, name, 0)
    while removed := step(job.user_id):
        _note(job, name, removed)


def _note(job: ErasureJob, name: str, removed: int) -> None:
    """Where the job is, and that its worker lives."""
    job.progress[name] = job.progress.get(name, 0) + removed
    mine = ErasureJob.objects.filter(pk=job.pk, attempts=job.attempts, finished_at=None)
    if not mine.update(phase=name, progress=job.progress, error="", next_try_at=Now() + LEASE):
        raise _Overtaken


def _wait(job: ErasureJob, code: str) -> None:
    """Twice as long each time, up to an hour; what does not get better in a week is for staff to see."""
    pause = min(timedelta(minutes=1) * 2 ** min(job.attempts, 10), LONGEST_PAUSE)
    started = job.started_at
    if started is not None and timezone.now() - started > timedelta(days=STORAGE_DAYS):
        log.error("an erasure cannot be finished for a week: %s", code)
        pause = timedelta(days=1)
    ErasureJob.objects.filter(pk=job.pk, attempts=job.attempts).update(error=code, next_try_at=Now() + pause)


def _finish(job: ErasureJob) -> None:
    """Nothing is left: the name goes, the last word is said, and the record of it stays."""
    address = job.user.email
    with transaction.atomic():
        farewells.anonymise(job.user)
        farewells.write_down(job)
        ErasureJob.objects.filter(pk=job.pk).update(finished_at=Now(), phase="", error="", next_try_at=None)
        farewells.say_done(address)  # before the commit: said twice at worst, never not at all
    metrics.erasures.labels("finished").inc()
