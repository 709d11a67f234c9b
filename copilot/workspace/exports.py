"""Conversations on their way out: at once when they are short, by a job otherwise; the only writer of ExportJob (S15)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import IO
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from config.core.audit import record_audit_event
from copilot import metrics, ports, queries
from copilot.errors import NotFound, Refused, StorageUnavailable
from copilot.events import ExportFinished
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import ExportJob, Session, WorkspaceFile
from copilot.workspace import archives, storage
from copilot.workspace.reading import Conversation, Wanted, is_long

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
STUCK_AFTER = timedelta(minutes=30)  # a worker that began and never ended
SEND_AGAIN_AFTER = timedelta(minutes=1)
MIMES = {"md": "text/markdown", "json": "application/json"}
ARCHIVE = "application/zip"
STATES = ExportJob.State


@dataclass(frozen=True, kw_only=True)
class Made:
    """A document that was short enough to be made at once."""

    name: str
    mime: str
    content: bytes


# --- asking ------------------------------------------------------------------------------------------


def takes_a_job(owner_id: int, session_id: UUID, wanted: Wanted) -> bool:
    """Whether it is too much to wait for."""
    queries.session_of(owner_id, session_id)
    return wanted.files or is_long(session_id, wanted)


def make(owner_id: int, session_id: UUID, wanted: Wanted) -> Made:
    """The document of a short conversation."""
    conversation = Conversation(queries.session_of(owner_id, session_id), wanted)
    content = b"".join(conversation.pieces(conversation.named()))
    metrics.exports.labels("direct").inc()
    return Made(name=conversation.name(wanted.format), mime=MIMES[wanted.format], content=content)


def request(owner_id: int, session_id: UUID, wanted: Wanted) -> ExportJob:
    """The job that makes it; asking again while nothing was said since finds the same one."""
    session = queries.session_of(owner_id, session_id)
    return _standing_job(session, wanted) or _requested(session, wanted)


def _standing_job(session: Session, wanted: Wanted) -> ExportJob | None:
    going = Q(state__in=(STATES.QUEUED, STATES.RUNNING))
    fresh = Q(state=STATES.READY, expires_at__gt=Now(), started_at__gt=session.active_at)
    same = ExportJob.objects.filter(session=session, format=wanted.format, options=wanted.options())
    return same.filter(going | fresh).order_by("-created_at").first()


def _requested(session: Session, wanted: Wanted) -> ExportJob:
    return _sent(
        ExportJob(owner_id=session.owner_id, session=session, format=wanted.format, options=wanted.options())
    )


def _sent(job: ExportJob) -> ExportJob:
    with transaction.atomic():
        job.save(force_insert=True)
        what = ("session", job.session_id) if job.session_id else ("user", job.owner_id)
        record_audit_event("export.requested", actor=job.owner, target=what, format=job.format)
    job.refresh_from_db()
    transaction.on_commit(lambda: ports.send_job("export", job.pk))
    return job


def request_everything(owner_id: int) -> ExportJob:
    """All of an account in one archive, once a day: who asks again gets the one of today."""
    recent = ExportJob.objects.filter(owner=owner_id, session=None, created_at__gt=Now() - timedelta(days=1))
    if (known := recent.exclude(state=STATES.FAILED).order_by("-created_at").first()) is not None:
        return known
    return _sent(ExportJob(owner_id=owner_id, format=ExportJob.Format.JSON, options=Wanted().options()))


def get(owner_id: int, job_id: UUID) -> ExportJob:
    """The owner's own job; foreign and unknown ones look the same."""
    job = ExportJob.objects.filter(pk=job_id, owner=owner_id).first()
    if job is None:
        raise NotFound
    return job


def ready(owner_id: int, job_id: UUID) -> WorkspaceFile:
    """What a finished job made, as a file that can be sent; it is in no list and lives for a day."""
    job = ExportJob.objects.filter(
        pk=job_id, owner=owner_id, state=STATES.READY, expires_at__gt=Now()
    ).first()
    if job is None:
        raise NotFound
    return WorkspaceFile(
        id=job.pk,
        owner_id=owner_id,
        name=job.name,
        mime=job.mime,
        size_bytes=job.size_bytes,
        sha256=job.pk.hex,  # stands for the content in its ETag: a job is made once
        storage_key=job.storage_key,
    )


def listed(owner_id: int, limit: int = 20) -> list[ExportJob]:
    """The newest first; those that have expired are history."""
    jobs = ExportJob.objects.filter(owner=owner_id).exclude(state=STATES.EXPIRED)
    return list(jobs.select_related("session").order_by("-created_at", "id")[:limit])


# --- making ------------------------------------------------------------------------------------------


def run(job_id: UUID) -> None:
    """Make what a job asks for; whoever comes second finds nothing to do."""
    job = _claimed(job_id)
    if job is None:
        return
    try:
        _make(job)
    except Refused as refusal:
        _fail(job, refusal.code, again=refusal.retryable)
    except OSError as problem:  # our own disk: what is wrong with the storage comes as a refusal
        log.warning("an export found no place to be written: %s", type(problem).__name__)
        _fail(job, StorageUnavailable.default_code, again=True)


def _claimed(job_id: UUID) -> ExportJob | None:
    stuck = Q(state=STATES.RUNNING, started_at__lte=Now() - STUCK_AFTER)
    waiting = ExportJob.objects.filter(Q(state=STATES.QUEUED) | stuck, pk=job_id)
    if not waiting.update(state=STATES.RUNNING, started_at=Now(), attempts=F("attempts") + 1):
        return None
    return ExportJob.objects.select_related("session").get(pk=job_id)


def _make(job: ExportJob) -> None:
    session = job.session
    if session is None:
        name = f"pilothouse-{job.created_at:%Y-%m-%d}.zip"
        _keep(job, name, ARCHIVE, lambda target: archives.write_everything(target, job.owner_id))
        return
    if session.deleted_at is not None:
        _fail(job, "not_found", again=False)
        return
    wanted = Wanted(format="json" if job.format == "json" else "md", **job.options)
    conversation = Conversation(session, wanted)
    if wanted.files:
        name, mime = conversation.name("zip"), ARCHIVE
        _keep(job, name, mime, lambda target: archives.write(target, conversation, wanted.format))
    else:
        name, mime = conversation.name(wanted.format), MIMES[wanted.format]
        _keep(job, name, mime, lambda target: target.writelines(conversation.pieces(conversation.named())))


def _keep(job: ExportJob, name: str, mime: str, write: Callable[[IO[bytes]], None]) -> None:
    """By way of a file on disk: the whole is never in memory. Without the row's word the bytes go again."""
    key = storage.new_key(job.owner_id, uuid4())
    with tempfile.TemporaryFile(prefix="pilothouse-export-") as target, ExitStack() as undo:
        write(target)
        size = storage.measure(target)
        undo.callback(storage.remove, key)
        storage.write(key, target, size)
        kept = ExportJob.objects.filter(pk=job.pk, state=STATES.RUNNING, attempts=job.attempts).update(
            state=STATES.READY,
            storage_key=key,
            name=name,
            mime=mime,
            size_bytes=size,
            error="",
            finished_at=Now(),
            expires_at=Now() + timedelta(hours=settings.EXPORT_KEEP_HOURS),
        )
        if kept:
            undo.pop_all()
            metrics.exports.labels("ready").inc()
            _tell(job, "ready", name)


def _fail(job: ExportJob, code: str, *, again: bool) -> None:
    mine = ExportJob.objects.filter(pk=job.pk, state=STATES.RUNNING, attempts=job.attempts)
    if again and job.attempts < MOST_ATTEMPTS:
        mine.update(state=STATES.QUEUED, error=code)  # the sweep sends it again
    elif mine.update(state=STATES.FAILED, error=code, finished_at=Now()):
        metrics.exports.labels("failed").inc()
        _tell(job, "failed", "")


def _tell(job: ExportJob, state: str, name: str) -> None:
    """In a log of its own, named by the job: it is news for its owner, whichever chat is open."""
    event = ExportFinished(export_id=str(job.pk), state="ready" if state == "ready" else "failed", name=name)
    try:
        stream.publish_now(str(job.pk), [(event, None)], user_id=job.owner_id)
    except RedisDown:
        log.warning("the event log is unreachable; a finished export is on its owner's page")


# --- looking after -----------------------------------------------------------------------------------


def look_after(limit: int = 200) -> None:
    """Send again what nobody took, give up what failed too often, remove what may no longer be fetched."""
    waiting = Q(state=STATES.QUEUED, created_at__lte=Now() - SEND_AGAIN_AFTER)
    stuck = Q(state=STATES.RUNNING, started_at__lte=Now() - STUCK_AFTER)
    for job in ExportJob.objects.filter(waiting | stuck)[:limit]:
        if job.state == STATES.RUNNING and job.attempts >= MOST_ATTEMPTS:
            _fail(job, "worker_lost", again=False)
        else:
            ports.send_job("export", job.pk)
    for job in ExportJob.objects.filter(state=STATES.READY, expires_at__lte=Now())[:limit]:
        try:
            storage.remove(job.storage_key)
        except StorageUnavailable:
            log.warning("the storage does not answer; exports that have expired are removed later")
            return
        ExportJob.objects.filter(pk=job.pk).update(state=STATES.EXPIRED, storage_key="")


def forget(limit: int, *, owner_id: int | None = None, session_ids: Sequence[UUID] = ()) -> int:
    """Remove exports of an owner or of sessions that go for good, bytes first; answers how many."""
    whose = Q(session__in=session_ids) if owner_id is None else Q(owner=owner_id)
    some = list(ExportJob.objects.filter(whose).order_by("pk")[:limit])
    for job in some:
        if job.storage_key:
            storage.remove(job.storage_key)
        job.delete()
    return len(some)
