"""Export sessions and accounts: short ones at once, others by a job. The only writer of ExportJob."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import IO
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from config.core.audit import record_audit_event
from config.core.errors import NotFound, RequestRefused, StorageUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import metrics, tasks
from copilot.chat import selectors as chat_selectors
from copilot.exports import archives
from copilot.exports.session_reader import ExportOptions, SessionExport, is_long_export
from copilot.files import storage
from copilot.models import ExportJob, Session, WorkspaceFile
from copilot.realtime import event_log
from copilot.realtime.events import ExportFinished

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 3
STUCK_AFTER = timedelta(minutes=30)  # its worker was lost
RESEND_AFTER = timedelta(minutes=1)
CONTENT_TYPES = {"md": "text/markdown", "json": "application/json"}
ARCHIVE_TYPE = "application/zip"
JobState = ExportJob.State


@dataclass(frozen=True, kw_only=True)
class DirectExport:
    """A document that is short enough to be made at once."""

    name: str
    mime: str
    content: bytes


# --- Request -----------------------------------------------------------------------------------------


def needs_job(owner_id: int, session_id: UUID, options: ExportOptions) -> bool:
    chat_selectors.get_session(owner_id, session_id)
    return options.files or is_long_export(session_id, options)


def make_document(owner_id: int, session_id: UUID, options: ExportOptions) -> DirectExport:
    conversation = SessionExport(chat_selectors.get_session(owner_id, session_id), options)
    content = b"".join(conversation.iter_chunks(conversation.list_named_files()))
    metrics.exports.labels("direct").inc()
    return DirectExport(
        name=conversation.get_file_name(options.format), mime=CONTENT_TYPES[options.format], content=content
    )


def request_export(owner_id: int, session_id: UUID, options: ExportOptions) -> ExportJob:
    """Return the job that makes the export; an unchanged session reuses an earlier job."""
    session = chat_selectors.get_session(owner_id, session_id)
    return _find_reusable_job(session, options) or _create_session_job(session, options)


def _find_reusable_job(session: Session, options: ExportOptions) -> ExportJob | None:
    unfinished = Q(state__in=(JobState.QUEUED, JobState.RUNNING))
    fresh = Q(state=JobState.READY, expires_at__gt=Now(), started_at__gt=session.active_at)
    same = ExportJob.objects.filter(session=session, format=options.format, options=options.to_json())
    return same.filter(unfinished | fresh).order_by("-created_at").first()


def _create_session_job(session: Session, options: ExportOptions) -> ExportJob:
    return _save_and_enqueue(
        ExportJob(
            owner_id=session.owner_id, session=session, format=options.format, options=options.to_json()
        )
    )


def _save_and_enqueue(job: ExportJob) -> ExportJob:
    with transaction.atomic():
        job.save(force_insert=True)
        target = ("session", job.session_id) if job.session_id else ("user", job.owner_id)
        record_audit_event("export.requested", actor=job.owner, target=target, format=job.format)
    job.refresh_from_db()
    transaction.on_commit(lambda: tasks.enqueue_data_job("export", job.pk))
    return job


def request_account_export(owner_id: int) -> ExportJob:
    """Return the job that exports the whole account; at most one a day."""
    recent = ExportJob.objects.filter(owner=owner_id, session=None, created_at__gt=Now() - timedelta(days=1))
    if (known := recent.exclude(state=JobState.FAILED).order_by("-created_at").first()) is not None:
        return known
    return _save_and_enqueue(
        ExportJob(owner_id=owner_id, format=ExportJob.Format.JSON, options=ExportOptions().to_json())
    )


def get_export(owner_id: int, job_id: UUID) -> ExportJob:
    """Return the owner's job. Foreign and unknown jobs are reported as not found."""
    job = ExportJob.objects.filter(pk=job_id, owner=owner_id).first()
    if job is None:
        raise NotFound
    return job


def get_ready_file(owner_id: int, job_id: UUID) -> WorkspaceFile:
    """Return a finished export as a file that can be downloaded. It is in no list and expires."""
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
        sha256=job.pk.hex,  # used as ETag: the content of a job never changes
        storage_key=job.storage_key,
    )


def list_exports(owner_id: int, limit: int = 20) -> list[ExportJob]:
    jobs = ExportJob.objects.filter(owner=owner_id).exclude(state=JobState.EXPIRED)
    return list(jobs.select_related("session").order_by("-created_at", "id")[:limit])


# --- Run ---------------------------------------------------------------------------------------------


def run_export(job_id: UUID) -> None:
    """Run a job. A second worker finds nothing to do."""
    job = _claim_job(job_id)
    if job is None:
        return
    try:
        _make_export(job)
    except RequestRefused as refusal:
        _record_failure(job, refusal.code, retry=refusal.retryable)
    except OSError as problem:  # of our own disk; problems of the storage arrive as refusals
        log.warning("export_not_written", export_id=str(job.pk), error_kind=type(problem).__name__)
        _record_failure(job, StorageUnavailable.default_code, retry=True)


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
        _record_failure(job, "not_found", retry=False)
        return
    options = ExportOptions(format="json" if job.format == "json" else "md", **job.options)
    conversation = SessionExport(session, options)
    if options.files:
        name, mime = conversation.get_file_name("zip"), ARCHIVE_TYPE
        _store_export(
            job,
            name,
            mime,
            lambda target: archives.write_session_archive(target, conversation, options.format),
        )
    else:
        name, mime = conversation.get_file_name(options.format), CONTENT_TYPES[options.format]
        _store_export(
            job,
            name,
            mime,
            lambda target: target.writelines(conversation.iter_chunks(conversation.list_named_files())),
        )


def _store_export(job: ExportJob, name: str, mime: str, write: Callable[[IO[bytes]], None]) -> None:
    """Write to a temporary file, then to the storage. The object is deleted if the job was taken by another worker."""
    key = storage.make_storage_key(job.owner_id, uuid4())
    with tempfile.TemporaryFile(prefix="pilothouse-export-") as target, ExitStack() as undo:
        write(target)
        size = storage.measure_size(target)
        undo.callback(storage.delete_object, key)
        storage.write_object(key, target, size)
        is_saved = ExportJob.objects.filter(pk=job.pk, state=JobState.RUNNING, attempts=job.attempts).update(
            state=JobState.READY,
            storage_key=key,
            name=name,
            mime=mime,
            size_bytes=size,
            error="",
            finished_at=Now(),
            expires_at=Now() + timedelta(hours=settings.EXPORT_KEEP_HOURS),
        )
        if is_saved:
            undo.pop_all()
            metrics.exports.labels("ready").inc()
            _publish_finished(job, "ready", name)


def _record_failure(job: ExportJob, code: str, *, retry: bool) -> None:
    own_job = ExportJob.objects.filter(pk=job.pk, state=JobState.RUNNING, attempts=job.attempts)
    if retry and job.attempts < MAX_ATTEMPTS:
        own_job.update(state=JobState.QUEUED, error=code)  # the sweep sends it again
    elif own_job.update(state=JobState.FAILED, error=code, finished_at=Now()):
        metrics.exports.labels("failed").inc()
        _publish_finished(job, "failed", "")


def _publish_finished(job: ExportJob, state: str, name: str) -> None:
    """Publish in an event log of its own, named by the job, as the owner may have any chat open."""
    event = ExportFinished(export_id=str(job.pk), state="ready" if state == "ready" else "failed", name=name)
    try:
        event_log.append_events(str(job.pk), [(event, None)], user_id=job.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("export_event_not_published", export_id=str(job.pk))


# --- Sweep and purge ---------------------------------------------------------------------------------


def sweep_exports(limit: int = 200) -> None:
    """Enqueue waiting jobs again, fail those that were tried too often, and delete expired files."""
    waiting = Q(state=JobState.QUEUED, created_at__lte=Now() - RESEND_AFTER)
    stuck = Q(state=JobState.RUNNING, started_at__lte=Now() - STUCK_AFTER)
    for job in ExportJob.objects.filter(waiting | stuck)[:limit]:
        if job.state == JobState.RUNNING and job.attempts >= MAX_ATTEMPTS:
            _record_failure(job, "worker_lost", retry=False)
        else:
            tasks.enqueue_data_job("export", job.pk)
    for job in ExportJob.objects.filter(state=JobState.READY, expires_at__lte=Now())[:limit]:
        try:
            storage.delete_object(job.storage_key)
        except StorageUnavailable:
            log.warning("expired_export_not_deleted", export_id=str(job.pk))
            return
        ExportJob.objects.filter(pk=job.pk).update(state=JobState.EXPIRED, storage_key="")


def purge_exports(limit: int, *, owner_id: int | None = None, session_ids: Sequence[UUID] = ()) -> int:
    """Delete the exports of an owner or of purged sessions, bytes first, and return how many."""
    selected = Q(session__in=session_ids) if owner_id is None else Q(owner=owner_id)
    batch = list(ExportJob.objects.filter(selected).order_by("pk")[:limit])
    for job in batch:
        if job.storage_key:
            storage.delete_object(job.storage_key)
        job.delete()
    return len(batch)
