"""Store, list, rename, delete and restore the files of a workspace. The only writer of their tables."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import IO, Literal
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, StorageUnavailable
from config.core.json_values import parse_uuid
from config.core.text import clean_filename, get_basename
from copilot import metrics, tasks
from copilot.files import artifacts, content_types, quotas, storage, virus_scan
from copilot.models import Message, Session, WorkspaceFile
from copilot.realtime.payloads import AttachmentPayload

log = structlog.get_logger(__name__)

TOOL_OUTPUT_RETENTION_DAYS = 90
MAX_SCAN_RETRIES = 3
SCAN_LOST_AFTER_MINUTES = 15  # the task of a scan that is pending for longer was lost
MAX_PAGE_FILES = 100
MAX_OFFSET = 10_000
USABLE_SCANS = (WorkspaceFile.Scan.UNSCANNED, WorkspaceFile.Scan.CLEAN)

FileSource = Literal["upload", "agent", "import", "platform"]


@dataclass(frozen=True, kw_only=True)
class FilePage:
    items: list[WorkspaceFile]
    offset: int
    has_more: bool


# --- Store -------------------------------------------------------------------------------------------


def store_file(
    owner_id: int,
    *,
    name: str,
    content: bytes | storage.ReadableStream,
    source: FileSource,
    session_id: UUID | None = None,
    call_id: str = "",
) -> WorkspaceFile:
    """Store a new file. Space is reserved before anything is written, and released if the write fails."""
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    size = storage.measure_size(stream)
    quota = quotas.get_quota(owner_id)
    quotas.check_file_size(quota, size)
    quotas.reserve_space(owner_id, quota, size)
    with ExitStack() as undo:
        undo.callback(quotas.release_space, owner_id, size)
        file = WorkspaceFile(
            owner_id=owner_id,
            session_id=session_id,
            call_id=call_id,
            name=clean_filename(name),
            source=source,
        )
        _write_file(file, stream, size)
        undo.pop_all()
    log.info("file_stored", file_id=str(file.id), size_bytes=size, source=source)
    _request_scan(file)
    return file


def _write_file(file: WorkspaceFile, stream: storage.ReadableStream, size: int) -> None:
    """Write the bytes, then the row; without the row the bytes are deleted.

    A scan has to pass before anybody reads them.
    """
    head = stream.read(content_types.HEAD_BYTES)
    stream.seek(0)
    file.mime = content_types.detect_content_type(head, file.name)
    file.size_bytes = size
    file.storage_key = storage.make_storage_key(file.owner_id, file.id)
    if virus_scan.is_scan_enabled():
        file.scan = WorkspaceFile.Scan.PENDING
    with ExitStack() as undo:
        undo.callback(storage.delete_object, file.storage_key)
        file.sha256 = storage.write_object(file.storage_key, stream, size)
        file.save(force_insert=True)
        undo.pop_all()
    file.refresh_from_db(fields=["created_at"])


def _request_scan(file: WorkspaceFile) -> None:
    if file.scan == WorkspaceFile.Scan.PENDING:
        transaction.on_commit(partial(tasks.enqueue_scan, file.id))


# --- Read --------------------------------------------------------------------------------------------


def get_file(owner_id: int, file_id: UUID) -> WorkspaceFile:
    """Return one live file. Foreign, deleted and unknown files are all reported as not found."""
    file = WorkspaceFile.objects.available().filter(pk=file_id, owner_id=owner_id).first()
    if file is None:
        raise NotFound
    return file


def check_scan(file: WorkspaceFile) -> None:
    if file.scan == WorkspaceFile.Scan.INFECTED:
        raise Forbidden(
            "This file is quarantined because a scan found something harmful in it.", code="quarantined"
        )
    if file.scan not in USABLE_SCANS:
        raise Conflict("This file is still being scanned. Try again in a moment.", code="scan_pending")


def open_file(file: WorkspaceFile) -> IO[bytes]:
    """Open the content unless a scan forbids it. The caller closes the stream."""
    check_scan(file)
    return storage.open_object(file.storage_key)


def get_file_page(
    owner_id: int,
    *,
    session_id: UUID | None = None,
    q: str = "",
    prefix: str = "",
    mime: str = "",
    limit: int = 50,
    offset: int = 0,
) -> FilePage:
    """Return live files, newest first. One more than `limit` is read to know whether others follow."""
    limit, offset = min(max(limit, 1), MAX_PAGE_FILES), min(max(offset, 0), MAX_OFFSET)
    found = _visible_files(owner_id, session_id)
    if q:
        found = found.filter(name__icontains=q.replace("\x00", ""))
    if prefix:
        found = found.filter(name__istartswith=prefix.replace("\x00", ""))
    if mime and "\x00" not in mime:
        found = found.filter(Q(mime=mime) | Q(mime__startswith=f"{mime.rstrip('/')}/"))
    rows = list(found.order_by("-created_at", "id")[offset : offset + limit + 1])
    return FilePage(items=rows[:limit], offset=offset, has_more=len(rows) > limit)


def count_files(owner_id: int) -> tuple[int, int]:
    """Count the files that lists show, and those in the trash."""
    shown = WorkspaceFile.objects.stored().filter(owner_id=owner_id)
    shown = shown.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT)
    return shown.filter(deleted_at=None).count(), shown.exclude(deleted_at=None).count()


def find_file(owner_id: int, reference: str, *, session_id: UUID | None = None) -> WorkspaceFile:
    """Find a file by id, `workspace://` URI or name. A name means the newest file of that name, scanned or not."""
    identifier = reference.removeprefix("workspace://").split("#")[0].split("/")[0].strip()
    file_id = parse_uuid(identifier.lower())
    found = _visible_files(owner_id, session_id)
    if file_id is not None:
        file = found.filter(pk=file_id).first()
    elif reference.startswith("workspace://"):
        file = None
    else:
        file = found.filter(name=clean_filename(reference)).order_by("-created_at", "id").first()
    if file is None:
        raise NotFound("There is no such file.")
    return file


def _visible_files(owner_id: int, session_id: UUID | None) -> QuerySet[WorkspaceFile]:
    live = WorkspaceFile.objects.available().filter(owner_id=owner_id)
    live = live.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT)
    return live if session_id is None else live.filter(session_id=session_id)


def resolve_attachments(
    owner_id: int, ids: list[str] | tuple[str, ...], *, session_id: UUID | None = None
) -> tuple[list[AttachmentPayload], list[str]]:
    """Return the owner's usable files in the given order, and the ids that name none."""
    wanted = {raw: file_id for raw in dict.fromkeys(ids) if (file_id := parse_uuid(raw)) is not None}
    found = {
        str(file.id): file
        for file in _visible_files(owner_id, session_id).filter(pk__in=wanted.values(), scan__in=USABLE_SCANS)
    }
    views = [to_attachment_view(found[raw]) for raw in wanted if raw in found]
    return views, [raw for raw in dict.fromkeys(ids) if raw not in found]


def get_chosen_files(owner_id: int, ids: Sequence[str]) -> tuple[list[WorkspaceFile], list[str]]:
    """Return the owner's live files in the given order, whatever their scan says, and the ids that name none."""
    wanted = {raw: parse_uuid(raw) for raw in ids}
    named = [file_id for file_id in wanted.values() if file_id is not None]
    found = {file.id: file for file in _visible_files(owner_id, None).filter(pk__in=named)}
    chosen = [found[file_id] for file_id in wanted.values() if file_id in found]
    return chosen, [raw for raw, file_id in wanted.items() if file_id not in found]


def get_file_names(owner_id: int, file_ids: Sequence[UUID]) -> dict[str, str]:
    """Return the names, by id, of those files that the owner can open."""
    found = _visible_files(owner_id, None).filter(pk__in=file_ids)
    return {str(file_id): name for file_id, name in found.values_list("pk", "name")}


def to_attachment_view(file: WorkspaceFile) -> AttachmentPayload:
    return AttachmentPayload(file_id=str(file.id), name=file.name, type=file.mime, size=file.size_bytes)


# --- Change ------------------------------------------------------------------------------------------


def rename_file(owner_id: int, file_id: UUID, name: str) -> WorkspaceFile:
    if not get_basename(name):
        raise InvalidRequest("A file needs a name.", code="invalid_name", field="name")
    if not _visible_files(owner_id, None).filter(pk=file_id).update(name=clean_filename(name)):
        raise NotFound
    return get_file(owner_id, file_id)


def trash_file(owner_id: int, file_id: UUID) -> None:
    """Move a file to the trash, where it still counts toward the quota."""
    if not _visible_files(owner_id, None).filter(pk=file_id).update(deleted_at=Now()):
        raise NotFound
    _publish_change(file_id)


def restore_file(owner_id: int, file_id: UUID) -> WorkspaceFile:
    trashed = WorkspaceFile.objects.stored().filter(
        pk=file_id, owner_id=owner_id, deleted_at__gt=Now() - timedelta(days=settings.WORKSPACE_TRASH_DAYS)
    )
    if not trashed.update(deleted_at=None):
        raise NotFound
    _publish_change(file_id)
    return get_file(owner_id, file_id)


def _publish_change(file_id: UUID) -> None:
    transaction.on_commit(lambda: artifacts.publish_artifact_change(WorkspaceFile.objects.get(pk=file_id)))


def purge_due_files(limit: int = 100) -> int:
    """Delete the content of old trash and old tool output, and return how many files were purged."""
    stored = WorkspaceFile.objects.stored()
    trash = stored.filter(deleted_at__lte=Now() - timedelta(days=settings.WORKSPACE_TRASH_DAYS))
    outputs = stored.filter(
        source=WorkspaceFile.Source.TOOL_OUTPUT,
        created_at__lte=Now() - timedelta(days=TOOL_OUTPUT_RETENTION_DAYS),
    )
    # Two queries, because each has an index of its own.
    purged = sum(_purge_file(file) for file in trash.order_by("deleted_at")[:limit])
    return purged + sum(_purge_file(file) for file in outputs.order_by("created_at")[:limit])


def discard_files(discarded: Sequence[WorkspaceFile]) -> None:
    """Delete files for good that were stored for a request which is over."""
    for file in discarded:
        _purge_file(file)


def _purge_file(file: WorkspaceFile) -> bool:
    """Mark the row before deleting the bytes, so that concurrent sweeps release the space once."""
    with transaction.atomic():
        if not WorkspaceFile.objects.stored().filter(pk=file.pk).update(purged_at=Now()):
            return False
        if file.source != WorkspaceFile.Source.TOOL_OUTPUT:
            quotas.release_space(file.owner_id, file.size_bytes)
    storage.delete_object(file.storage_key)
    return True


# --- Scan --------------------------------------------------------------------------------------------


def scan_file(file_id: UUID) -> str:
    """Let the hook scan a pending file, and return the new state. Raises whatever the hook raises."""
    pending = WorkspaceFile.objects.stored().filter(pk=file_id, scan=WorkspaceFile.Scan.PENDING)
    file = pending.first()
    if file is None:
        return ""
    verdict: str = WorkspaceFile.Scan.UNSCANNED  # if the hook was disabled meanwhile
    if virus_scan.is_scan_enabled():
        meta = virus_scan.ScannedFile(
            file_id=file.id, name=file.name, mime=file.mime, size_bytes=file.size_bytes, sha256=file.sha256
        )
        with storage.open_object(file.storage_key) as stream:
            verdict = virus_scan.run_hook(stream, meta)
    if not pending.update(scan=verdict, scanned_at=Now()):
        return ""  # another scan was faster
    metrics.scans.labels(verdict).inc()
    log.info("file_scanned", file_id=str(file.id), verdict=verdict)
    return verdict


def refresh_scans(batch: Sequence[WorkspaceFile]) -> None:
    states = dict(WorkspaceFile.objects.filter(pk__in=[file.pk for file in batch]).values_list("pk", "scan"))
    for file in batch:
        file.scan = states.get(file.pk, file.scan)


def record_scan_failure(file_id: UUID) -> int | None:
    """Count a failed scan and return the number of failures, or None when the scan is given up."""
    pending = WorkspaceFile.objects.filter(pk=file_id, scan=WorkspaceFile.Scan.PENDING)
    if pending.filter(scan_attempts__gte=MAX_SCAN_RETRIES).update(
        scan=WorkspaceFile.Scan.FAILED, scan_attempts=F("scan_attempts") + 1, scanned_at=Now()
    ):
        metrics.scans.labels("failed").inc()
        log.error("file_scan_given_up", file_id=str(file_id))
        return None
    if not pending.update(scan_attempts=F("scan_attempts") + 1):
        return None
    metrics.scans.labels("again").inc()
    return WorkspaceFile.objects.values_list("scan_attempts", flat=True).get(pk=file_id)


def retry_scan(owner_id: int, file_id: UUID) -> WorkspaceFile:
    """Scan a file again whose scan was given up. A file in any other state is left as it is."""
    file = get_file(owner_id, file_id)
    given_up = WorkspaceFile.objects.stored().filter(pk=file.pk, scan=WorkspaceFile.Scan.FAILED)
    with transaction.atomic():
        if given_up.update(scan=WorkspaceFile.Scan.PENDING, scan_attempts=0):
            file.scan = WorkspaceFile.Scan.PENDING
            _request_scan(file)
    return file


def list_lost_scans(limit: int = 500) -> list[UUID]:
    lost = Now() - timedelta(minutes=SCAN_LOST_AFTER_MINUTES)
    rows = WorkspaceFile.objects.stored().filter(scan=WorkspaceFile.Scan.PENDING, created_at__lte=lost)
    return list(rows.order_by("created_at").values_list("pk", flat=True)[:limit])


# --- Store tool output -------------------------------------------------------------------------------


def store_tool_output(session_id: UUID, call_id: str, text: str) -> WorkspaceFile:
    """Store the whole output of a call, outside of quota and lists."""
    return _store_output(session_id, f"{call_id}.txt", text.encode(), call_id=call_id)


def store_tool_image(session_id: UUID, name: str, content: bytes) -> WorkspaceFile:
    """Store an image that a tool made, outside of quota and lists.

    It has no call id, because the call's text is looked up by that.
    """
    return _store_output(session_id, name or "picture", content)


def _store_output(session_id: UUID, name: str, content: bytes, *, call_id: str = "") -> WorkspaceFile:
    file = WorkspaceFile(
        owner_id=Session.objects.values_list("owner_id", flat=True).get(pk=session_id),
        session_id=session_id,
        call_id=call_id,
        name=clean_filename(name),
        source=WorkspaceFile.Source.TOOL_OUTPUT,
    )
    _write_file(file, io.BytesIO(content), len(content))
    _request_scan(file)
    return file


# --- Purge -------------------------------------------------------------------------------------------


def purge_owner_files(owner_id: int, limit: int) -> int:
    """Delete an owner's files for good, bytes before rows, and return how many."""
    return _delete_batch(WorkspaceFile.objects.filter(owner_id=owner_id), limit)


def purge_session_outputs(session_ids: Sequence[UUID], limit: int) -> int:
    """Delete the tool output of sessions that are purged; other files stay in the workspace."""
    outputs = WorkspaceFile.objects.filter(session__in=session_ids, source=WorkspaceFile.Source.TOOL_OUTPUT)
    return _delete_batch(outputs, limit)


def _delete_batch(files: QuerySet[WorkspaceFile], limit: int) -> int:
    batch = list(files.order_by("pk")[:limit])
    for file in batch:
        if file.purged_at is None:
            storage.delete_object(file.storage_key)
    WorkspaceFile.objects.filter(pk__in=[file.pk for file in batch]).delete()
    return len(batch)


# --- Read tool output --------------------------------------------------------------------------------


def read_tool_output(user_id: int, session_id: UUID, call_id: str) -> str:
    """Read the output of a call, or a long message named by its id, of this session or its ancestors."""
    for ancestor_id in _list_ancestor_sessions(user_id, session_id):
        if (text := _find_output(ancestor_id, call_id)) is not None:
            return text
    raise NotFound("This session has no output of such a call.")


def list_output_sources(user_id: int, session_id: UUID, call_id: str) -> tuple[str, ...]:
    places = _list_ancestor_sessions(user_id, session_id)
    rows = Message.objects.filter(
        _make_output_filter(call_id), session_id__in=places, data__has_key="sources"
    )
    return tuple(dict.fromkeys(str(source) for row in rows.only("data") for source in row.data["sources"]))


def _list_ancestor_sessions(user_id: int, session_id: UUID) -> list[UUID]:
    """Return the session and its ancestors, at most three levels up; nothing for another user."""
    levels = ("pk", "parent", "parent__parent", "parent__parent__parent")
    chain = Session.objects.filter(pk=session_id, owner_id=user_id).values_list(*levels).first()
    return [place for place in chain or () if place is not None]


def _find_output(session_id: UUID, call_id: str) -> str | None:
    outputs = WorkspaceFile.objects.stored().filter(
        session_id=session_id, call_id=call_id, source=WorkspaceFile.Source.TOOL_OUTPUT
    )
    file = outputs.order_by("-created_at").first()
    if file is not None:
        with open_file(file) as stream:
            return stream.read().decode()
    row = Message.objects.filter(_make_output_filter(call_id), session_id=session_id).only("content").first()
    return None if row is None else row.content


def _make_output_filter(call_id: str) -> Q:
    result = Q(kind=Message.Kind.TOOL_RESULT, call_id=call_id)
    message_id = parse_uuid(call_id)
    return result if message_id is None else result | Q(kind=Message.Kind.USER, pk=message_id)


# --- Images for models -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ImageContent:
    mime: str
    data: bytes = field(repr=False)


def load_image(file: WorkspaceFile) -> ImageContent | None:
    """Return the image if models accept it natively: magic bytes match the stored type and it is not too large."""
    if file.scan not in USABLE_SCANS or not content_types.is_native_image(file.mime, file.size_bytes):
        return None
    with open_file(file) as stream:
        content = stream.read()
    mime = content_types.detect_image_type(content)
    return ImageContent(mime=mime, data=content) if mime == file.mime else None


def load_images(owner_id: int, file_ids: Sequence[str], *, most_bytes: int) -> dict[str, ImageContent]:
    """Load images of a session by id, up to `most_bytes`. Missing ones are left out."""
    usable = WorkspaceFile.objects.available().filter(
        pk__in=file_ids, owner_id=owner_id, scan__in=USABLE_SCANS
    )
    rows = {str(file.id): file for file in usable}
    found: dict[str, ImageContent] = {}
    for file_id in file_ids:
        if (file := rows.get(file_id)) is None:
            continue
        most_bytes -= file.size_bytes
        if most_bytes < 0:
            break
        if (image := _load_image_if_readable(file)) is not None:
            found[file_id] = image
    return found


def _load_image_if_readable(file: WorkspaceFile) -> ImageContent | None:
    try:
        return load_image(file)
    except StorageUnavailable:
        log.warning("image_unreadable", file_id=str(file.id))
        return None
