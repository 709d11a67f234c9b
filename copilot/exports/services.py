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
from config.core.errors import NotFound, RequestRefused, StorageUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics
from copilot.chat import selectors as chat_selectors
from copilot.chat import service_bindings
from copilot.exports import archives
from copilot.exports.session_reader import ExportOptions, SessionExport, is_long_export
from copilot.files import storage
from copilot.models import ExportJob, Session, WorkspaceFile
from copilot.realtime import event_log
from copilot.realtime.events import ExportFinished

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
STUCK_AFTER = timedelta(minutes=30)  # a worker that began and never ended
RESEND_AFTER = timedelta(minutes=1)
CONTENT_TYPES = {"md": "text/markdown", "json": "application/json"}
ARCHIVE_TYPE = "application/zip"
JobState = ExportJob.State


@dataclass(frozen=True, kw_only=True)
class DirectExport:
    """A document that was short enough to be made at once."""

    name: str
    mime: str
    content: bytes


# --- asking ------------------------------------------------------------------------------------------


def needs_job(owner_id: int, session_id: UUID, wanted: ExportOptions) -> bool:
    """Whether it is too much to wait for."""
    chat_selectors.get_session(owner_id, session_id)
    return wanted.files or is_long_export(session_id, wanted)


def make_document(owner_id: int, session_id: UUID, wanted: ExportOptions) -> DirectExport:
    """The document of a short conversation."""
    conversation = SessionExport(chat_selectors.get_session(owner_id, session_id), wanted)
    content = b"".join(conversation.iter_chunks(conversation.list_named_files()))
    metrics.exports.labels("direct").inc()
    return DirectExport(
        name=conversation.get_file_name(wanted.format), mime=CONTENT_TYPES[wanted.format], content=content
    )


def request_export(owner_id: int, session_id: UUID, wanted: ExportOptions) -> ExportJob:
    """The job that makes it; asking again while nothing was said since finds the same one."""
    session = chat_selectors.get_session(owner_id, session_id)
    return _find_reusable_job(session, wanted) or _create_session_job(session, wanted)


def _find_reusable_job(session: Session, wanted: ExportOptions) -> ExportJob | None:
    going = Q(state__in=(JobState.QUEUED, JobState.RUNNING))
    fresh = Q(state=JobState.READY, expires_at__gt=Now(), started_at__gt=session.active_at)
    same = ExportJob.objects.filter(session=session, format=wanted.format, options=wanted.to_json())
    return same.filter(going | fresh).order_by("-created_at").first()


def _create_session_job(session: Session, wanted: ExportOptions) -> ExportJob:
    return _save_and_enqueue(
        ExportJob(owner_id=session.owner_id, session=session, format=wanted.format, options=wanted.to_json())
    )


def _save_and_enqueue(job: ExportJob) -> ExportJob:
    with transaction.atomic():
        job.save(force_insert=True)
        what = ("session", job.session_id) if job.session_id else ("user", job.owner_id)
        record_audit_event("export.requested", actor=job.owner, target=what, format=job.format)
    job.refresh_from_db()
    transaction.on_commit(lambda: service_bindings.enqueue_data_job("export", job.pk))
    return job


def request_account_export(owner_id: int) -> ExportJob:
    """All of an account in one archive, once a day: who asks again gets the one of today."""
    recent = ExportJob.objects.filter(owner=owner_id, session=None, created_at__gt=Now() - timedelta(days=1))
    if (known := recent.exclude(state=JobState.FAILED).order_by("-created_at").first()) is not None:
        return known
    return _save_and_enqueue(
        ExportJob(owner_id=owner_id, format=ExportJob.Format.JSON, options=ExportOptions().to_json())
    )


def get_export(owner_id: int, job_id: UUID) -> ExportJob:
    """The owner's own job; foreign and unknown ones look the same."""
    job = ExportJob.objects.filter(pk=job_id, owner=owner_id).first()
    if job is None:
        raise NotFound
    return job


def get_ready_file(owner_id: int, job_id: UUID) -> WorkspaceFile:
    """What a finished job made, as a file that can be sent; it is in no list and lives for a day."""
    job = ExportJob.objects.filter(
        pk=job_id, owner=owner_id, state=JobState.READY, expires_at__gt=Now()
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


def list_exports(owner_id: int, limit: int = 20) -> list[ExportJob]:
    """The newest first; those that have expired are history."""
    jobs = ExportJob.objects.filter(owner=owner_id).exclude(state=JobState.EXPIRED)
    return list(jobs.select_related("session").order_by("-created_at", "id")[:limit])


# --- making ------------------------------------------------------------------------------------------


def run_export(job_id: UUID) -> None:
    """Make what a job asks for; whoever comes second finds nothing to do."""
    job = _claim_job(job_id)
    if job is None:
        return
    try:
        _make_export(job)
    except RequestRefused as refusal:
        _record_failure(job, refusal.code, again=refusal.retryable)
    except OSError as problem:  # our own disk: what is wrong with the storage comes as a refusal
        log.warning("an export found no place to be written: %s", type(problem).__name__)
        _record_failure(job, StorageUnavailable.default_code, again=True)


def _claim_job(job_id: UUID) -> ExportJob | None:
    stuck = Q(state=JobState.RUNNING, started_at__lte=Now() - STUCK_AFTER)
    waiting = ExportJob.objects.filter(Q(state=JobState.QUEUED) | stuck, pk=job_id)
    if not waiting.update(state=JobState.RUNNING, started_at=Now(), attempts=F("attempts") + 1):
        return None
    return ExportJob.objects.select_related("session").get(pk=job_id)


def _make_export(job: ExportJob) -> None:
    session = job.session
    if session is None:
        name = f"pilothouse-{job.created_at:%Y-%m-%d}.zip"
        _store_export(
            job, name, ARCHIVE_TYPE, lambda target: archives.write_account_archive(target, job.owner_id)
        )
        return
    if session.deleted_at is not None:
        _record_failure(job, "not_found", again=False)
        return
    wanted = ExportOptions(format="json" if job.format == "json" else "md", **job.options)
    conversation = SessionExport(session, wanted)
    if wanted.files:
        name, mime = conversation.get_file_name("zip"), ARCHIVE_TYPE
        _store_export(
            job,
            name,
            mime,
            lambda target: archives.write_session_archive(target, conversation, wanted.format),
        )
    else:
        name, mime = conversation.get_file_name(wanted.format), CONTENT_TYPES[wanted.format]
        _store_export(
            job,
            name,
            mime,
            lambda target: target.writelines(conversation.iter_chunks(conversation.list_named_files())),
        )


def _store_export(job: ExportJob, name: str, mime: str, write: Callable[[IO[bytes]], None]) -> None:
    """By way of a file on disk: the whole is never in memory. Without the row's word the bytes go again."""
    key = storage.make_storage_key(job.owner_id, uuid4())
    with tempfile.TemporaryFile(prefix="pilothouse-export-") as target, ExitStack() as undo:
        write(target)
        size = storage.measure_size(target)
        undo.callback(storage.delete_object, key)
        storage.write_object(key, target, size)
        kept = ExportJob.objects.filter(pk=job.pk, state=JobState.RUNNING, attempts=job.attempts).update(
            state=JobState.READY,
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
            _publish_finished(job, "ready", name)


def _record_failure(job: ExportJob, code: str, *, again: bool) -> None:
    mine = ExportJob.objects.filter(pk=job.pk, state=JobState.RUNNING, attempts=job.attempts)
    if again and job.attempts < MAX_ATTEMPTS:
        mine.update(state=JobState.QUEUED, error=code)  # the sweep sends it again
    elif mine.update(state=JobState.FAILED, error=code, finished_at=Now()):
        metrics.exports.labels("failed").inc()
        _publish_finished(job, "failed", "")


def _publish_finished(job: ExportJob, state: str, name: str) -> None:
    """In a log of its own, named by the job: it is news for its owner, whichever chat is open."""
    event = ExportFinished(export_id=str(job.pk), state="ready" if state == "ready" else "failed", name=name)
    try:
        event_log.append_events(str(job.pk), [(event, None)], user_id=job.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("the event log is unreachable; a finished export is on its owner's page")


# --- looking after -----------------------------------------------------------------------------------


def sweep_exports(limit: int = 200) -> None:
    """Send again what nobody took, give up what failed too often, remove what may no longer be fetched."""
    waiting = Q(state=JobState.QUEUED, created_at__lte=Now() - RESEND_AFTER)
    stuck = Q(state=JobState.RUNNING, started_at__lte=Now() - STUCK_AFTER)
    for job in ExportJob.objects.filter(waiting | stuck)[:limit]:
        if job.state == JobState.RUNNING and job.attempts >= MAX_ATTEMPTS:
            _record_failure(job, "worker_lost", again=False)
        else:
            service_bindings.enqueue_data_job("export", job.pk)
    for job in ExportJob.objects.filter(state=JobState.READY, expires_at__lte=Now())[:limit]:
        try:
            storage.delete_object(job.storage_key)
        except StorageUnavailable:
            log.warning("the storage does not answer; exports that have expired are removed later")
            return
        ExportJob.objects.filter(pk=job.pk).update(state=JobState.EXPIRED, storage_key="")


def purge_exports(limit: int, *, owner_id: int | None = None, session_ids: Sequence[UUID] = ()) -> int:
    """Remove exports of an owner or of sessions that go for good, bytes first; answers how many."""
    whose = Q(session__in=session_ids) if owner_id is None else Q(owner=owner_id)
    some = list(ExportJob.objects.filter(whose).order_by("pk")[:limit])
    for job in some:
        if job.storage_key:
            storage.delete_object(job.storage_key)
        job.delete()
    return len(some)
