"""The files of a workspace: stored, listed, renamed, deleted, restored; the only writer of their tables (S2–S5, A22)."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import IO, Literal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from copilot import artifacts, metrics, ports
from copilot.commands import as_uuid
from copilot.errors import Conflict, Forbidden, InvalidRequest, NotFound
from copilot.events import AttachmentView
from copilot.models import Session, WorkspaceFile
from copilot.names import last_part, stored_name
from copilot.workspace import quotas, scanning, sniffing, storage

_log = logging.getLogger(__name__)

TOOL_OUTPUT_DAYS = 90  # A9.6
SCAN_RETRIES = 3
SCAN_LOST_MINUTES = 15  # after which nobody is looking at a pending file any more
PAGE_FILES = 100
MAX_OFFSET = 10_000
USABLE = (WorkspaceFile.Scan.UNSCANNED, WorkspaceFile.Scan.CLEAN)

Source = Literal["upload", "agent", "import", "platform"]


@dataclass(frozen=True, kw_only=True)
class Page:
    items: list[WorkspaceFile]
    offset: int
    has_more: bool


# --- storing -----------------------------------------------------------------------------------------


def store(
    owner_id: int,
    *,
    name: str,
    content: bytes | storage.Readable,
    source: Source,
    session_id: UUID | None = None,
    call_id: str = "",
) -> WorkspaceFile:
    """Keep a new file. Room is taken before anything is written, and given back if the writing fails."""
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    size = storage.measure(stream)
    quota = quotas.quota_of(owner_id)
    quotas.check_size(quota, size)
    quotas.take(owner_id, quota, size)
    with ExitStack() as undo:
        undo.callback(quotas.give_back, owner_id, size)
        file = WorkspaceFile(
            owner_id=owner_id, session_id=session_id, call_id=call_id, name=stored_name(name), source=source
        )
        _keep(file, stream, size)
        undo.pop_all()
    _log.info("stored file %s: %d bytes, from %s", file.id, size, source)
    _have_scanned(file)
    return file


def _keep(file: WorkspaceFile, stream: storage.Readable, size: int) -> None:
    """Bytes first, then the row; without the row the bytes go again. Nobody has them before a scan lets them through."""
    head = stream.read(sniffing.HEAD_BYTES)
    stream.seek(0)
    file.mime = sniffing.detect(head, file.name)
    file.size_bytes = size
    file.storage_key = storage.new_key(file.owner_id, file.id)
    if scanning.is_on():
        file.scan = WorkspaceFile.Scan.PENDING
    with ExitStack() as undo:
        undo.callback(storage.remove, file.storage_key)
        file.sha256 = storage.write(file.storage_key, stream, size)
        file.save(force_insert=True)
        undo.pop_all()
    file.refresh_from_db(fields=["created_at"])


def _have_scanned(file: WorkspaceFile) -> None:
    if file.scan == WorkspaceFile.Scan.PENDING:
        transaction.on_commit(partial(ports.send_scan, file.id))


# --- reading -----------------------------------------------------------------------------------------


def get(owner_id: int, file_id: UUID) -> WorkspaceFile:
    """One live file; foreign, deleted and unknown ones look the same."""
    file = WorkspaceFile.objects.filter(
        pk=file_id, owner_id=owner_id, deleted_at=None, purged_at=None
    ).first()
    if file is None:
        raise NotFound
    return file


def check_scan(file: WorkspaceFile) -> None:
    """Refuse what a scan forbids, or has not yet allowed (S4)."""
    if file.scan == WorkspaceFile.Scan.INFECTED:
        raise Forbidden("This file is in quarantine.", code="quarantined")
    if file.scan not in USABLE:
        raise Conflict("This file is still being checked.", code="scan_pending")


def open(file: WorkspaceFile) -> IO[bytes]:  # noqa: A001 - files.open reads as it should
    """The bytes, unless a scan forbids them; the caller closes the stream."""
    check_scan(file)
    return storage.read(file.storage_key)


def page(
    owner_id: int,
    *,
    session_id: UUID | None = None,
    q: str = "",
    prefix: str = "",
    mime: str = "",
    limit: int = 50,
    offset: int = 0,
) -> Page:
    """Live files, newest first; one more than `limit` is read to know whether others follow."""
    limit, offset = min(max(limit, 1), PAGE_FILES), min(max(offset, 0), MAX_OFFSET)
    found = _listed(owner_id, session_id)
    if q:
        found = found.filter(name__icontains=q.replace("\x00", ""))
    if prefix:
        found = found.filter(name__istartswith=prefix.replace("\x00", ""))
    if mime and "\x00" not in mime:
        found = found.filter(Q(mime=mime) | Q(mime__startswith=f"{mime.rstrip('/')}/"))
    rows = list(found.order_by("-created_at", "id")[offset : offset + limit + 1])
    return Page(items=rows[:limit], offset=offset, has_more=len(rows) > limit)


def find(owner_id: int, reference: str, *, session_id: UUID | None = None) -> WorkspaceFile:
    """The file meant by an id, a `workspace://` URI or a name, which means the newest that bears it, scanned or not."""
    identifier = reference.removeprefix("workspace://").split("#")[0].split("/")[0].strip()
    file_id = as_uuid(identifier.lower())
    found = _listed(owner_id, session_id)
    if file_id is not None:
        file = found.filter(pk=file_id).first()
    elif reference.startswith("workspace://"):
        file = None
    else:
        file = found.filter(name=stored_name(reference)).order_by("-created_at", "id").first()
    if file is None:
        raise NotFound("There is no such file.")
    return file


def _listed(owner_id: int, session_id: UUID | None) -> QuerySet[WorkspaceFile]:
    """What the owner can see: nothing deleted, and no output of tools (S2)."""
    live = WorkspaceFile.objects.filter(owner_id=owner_id, deleted_at=None, purged_at=None)
    live = live.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT)
    return live if session_id is None else live.filter(session_id=session_id)


def resolve_attachments(
    owner_id: int, ids: list[str] | tuple[str, ...], *, session_id: UUID | None = None
) -> tuple[list[AttachmentView], list[str]]:
    """The owner's usable files in the order given, and the ids that name none (A29.1)."""
    wanted = {raw: file_id for raw in dict.fromkeys(ids) if (file_id := as_uuid(raw)) is not None}
    found = {
        str(file.id): file
        for file in _listed(owner_id, session_id).filter(pk__in=wanted.values(), scan__in=USABLE)
    }
    views = [view(found[raw]) for raw in wanted if raw in found]
    return views, [raw for raw in dict.fromkeys(ids) if raw not in found]


def chosen(owner_id: int, ids: Sequence[str]) -> tuple[list[WorkspaceFile], list[str]]:
    """The owner's live files in the order given, whatever a scan says of them, and the ids that name none."""
    wanted = {raw: as_uuid(raw) for raw in ids}
    named = [file_id for file_id in wanted.values() if file_id is not None]
    found = {file.id: file for file in _listed(owner_id, None).filter(pk__in=named)}
    chosen = [found[file_id] for file_id in wanted.values() if file_id in found]
    return chosen, [raw for raw, file_id in wanted.items() if file_id not in found]


def view(file: WorkspaceFile) -> AttachmentView:
    return AttachmentView(file_id=str(file.id), name=file.name, type=file.mime, size=file.size_bytes)


# --- changing ----------------------------------------------------------------------------------------


def rename(owner_id: int, file_id: UUID, name: str) -> WorkspaceFile:
    if not last_part(name):
        raise InvalidRequest("A file needs a name.", code="invalid_name")
    if not _listed(owner_id, None).filter(pk=file_id).update(name=stored_name(name)):
        raise NotFound
    return get(owner_id, file_id)


def delete(owner_id: int, file_id: UUID) -> None:
    """Into the trash, where it still counts."""
    if not _listed(owner_id, None).filter(pk=file_id).update(deleted_at=Now()):
        raise NotFound
    _tell(file_id)


def restore(owner_id: int, file_id: UUID) -> WorkspaceFile:
    """Out of the trash, within its days."""
    trashed = WorkspaceFile.objects.filter(
        pk=file_id,
        owner_id=owner_id,
        purged_at=None,
        deleted_at__gt=Now() - timedelta(days=settings.WORKSPACE_TRASH_DAYS),
    )
    if not trashed.update(deleted_at=None):
        raise NotFound
    _tell(file_id)
    return get(owner_id, file_id)


def _tell(file_id: UUID) -> None:
    transaction.on_commit(lambda: artifacts.tell(WorkspaceFile.objects.get(pk=file_id)))


def usage(owner_id: int) -> quotas.Use:
    """What is taken, the trash included, and what the plan allows."""
    return quotas.usage(owner_id)


def purge_due(limit: int = 100) -> int:
    """Remove the bytes of what has lain in the trash, or was a tool's output, for too long; answers how many."""
    trash, outputs = (
        Now() - timedelta(days=settings.WORKSPACE_TRASH_DAYS),
        Now() - timedelta(days=TOOL_OUTPUT_DAYS),
    )
    due = WorkspaceFile.objects.filter(
        Q(deleted_at__lte=trash) | Q(source=WorkspaceFile.Source.TOOL_OUTPUT, created_at__lte=outputs),
        purged_at=None,
    )
    return sum(_purge(file) for file in due.order_by("created_at")[:limit])


def _purge(file: WorkspaceFile) -> bool:
    """The row says so before the bytes go, and gives its room back once, however many sweep."""
    with transaction.atomic():
        if not WorkspaceFile.objects.filter(pk=file.pk, purged_at=None).update(purged_at=Now()):
            return False
        if file.source != WorkspaceFile.Source.TOOL_OUTPUT:
            quotas.give_back(file.owner_id, file.size_bytes)
    storage.remove(file.storage_key)
    return True


# --- scanning ----------------------------------------------------------------------------------------


def scan(file_id: UUID) -> str:
    """Let the hook look through a pending file; answers what the file is now. Raises whatever the hook does (S4)."""
    pending = WorkspaceFile.objects.filter(pk=file_id, scan=WorkspaceFile.Scan.PENDING, purged_at=None)
    file = pending.first()
    if file is None:
        return ""
    verdict: str = WorkspaceFile.Scan.UNSCANNED  # where the hook was taken away meanwhile
    if scanning.is_on():
        meta = scanning.Meta(
            file_id=file.id, name=file.name, mime=file.mime, size_bytes=file.size_bytes, sha256=file.sha256
        )
        with storage.read(file.storage_key) as stream:
            verdict = scanning.judge(stream, meta)
    if not pending.update(scan=verdict, scanned_at=Now()):
        return ""  # somebody else's look was faster
    metrics.scans.labels(verdict).inc()
    _log.info("scanned file %s: %s", file.id, verdict)
    return verdict


def read_scans(some: Sequence[WorkspaceFile]) -> None:
    """What scans have said of these files meanwhile, put down in them."""
    states = dict(WorkspaceFile.objects.filter(pk__in=[file.pk for file in some]).values_list("pk", "scan"))
    for file in some:
        file.scan = states.get(file.pk, file.scan)


def scan_failed(file_id: UUID) -> int | None:
    """Count a failed look; answers how many there were, or None when it was the last: the file stays closed."""
    pending = WorkspaceFile.objects.filter(pk=file_id, scan=WorkspaceFile.Scan.PENDING)
    if pending.filter(scan_attempts__gte=SCAN_RETRIES).update(
        scan=WorkspaceFile.Scan.FAILED, scan_attempts=F("scan_attempts") + 1, scanned_at=Now()
    ):
        metrics.scans.labels("failed").inc()
        _log.error("file %s could not be scanned and stays closed", file_id)
        return None
    if not pending.update(scan_attempts=F("scan_attempts") + 1):
        return None
    metrics.scans.labels("again").inc()
    return WorkspaceFile.objects.values_list("scan_attempts", flat=True).get(pk=file_id)


def scan_again(owner_id: int, file_id: UUID) -> WorkspaceFile:
    """Look once more through a file that was given up; one of any other state stays as it is."""
    file = get(owner_id, file_id)
    given_up = WorkspaceFile.objects.filter(pk=file.pk, scan=WorkspaceFile.Scan.FAILED, purged_at=None)
    with transaction.atomic():
        if given_up.update(scan=WorkspaceFile.Scan.PENDING, scan_attempts=0):
            file.scan = WorkspaceFile.Scan.PENDING
            _have_scanned(file)
    return file


def scans_lost(limit: int = 500) -> list[UUID]:
    """Pending files whose task must have been lost on its way."""
    lost = Now() - timedelta(minutes=SCAN_LOST_MINUTES)
    rows = WorkspaceFile.objects.filter(scan=WorkspaceFile.Scan.PENDING, purged_at=None, created_at__lte=lost)
    return list(rows.order_by("created_at").values_list("pk", flat=True)[:limit])


# --- outputs of tools --------------------------------------------------------------------------------


def store_tool_output(session_id: UUID, call_id: str, text: str) -> WorkspaceFile:
    """The whole output of a call, outside quota and lists (A9.6)."""
    return _keep_output(session_id, f"{call_id}.txt", text.encode(), call_id=call_id)


def store_tool_image(session_id: UUID, name: str, content: bytes) -> WorkspaceFile:
    """A picture that a tool made, outside quota and lists; no call is named, for its text is read by the call's id."""
    return _keep_output(session_id, name or "picture", content)


def _keep_output(session_id: UUID, name: str, content: bytes, *, call_id: str = "") -> WorkspaceFile:
    file = WorkspaceFile(
        owner_id=Session.objects.values_list("owner_id", flat=True).get(pk=session_id),
        session_id=session_id,
        call_id=call_id,
        name=stored_name(name),
        source=WorkspaceFile.Source.TOOL_OUTPUT,
    )
    _keep(file, io.BytesIO(content), len(content))
    _have_scanned(file)
    return file


# --- for good ----------------------------------------------------------------------------------------


def forget(owner_id: int, limit: int) -> int:
    """Remove an owner's files for good, bytes before rows, so that nothing is lost track of; answers how many."""
    return _forget(WorkspaceFile.objects.filter(owner_id=owner_id), limit)


def forget_outputs(session_ids: Sequence[UUID], limit: int) -> int:
    """What tools put out in sessions that go for good; other files of theirs stay in the workspace."""
    outputs = WorkspaceFile.objects.filter(session__in=session_ids, source=WorkspaceFile.Source.TOOL_OUTPUT)
    return _forget(outputs, limit)


def _forget(files: QuerySet[WorkspaceFile], limit: int) -> int:
    some = list(files.order_by("pk")[:limit])
    for file in some:
        if file.purged_at is None:
            storage.remove(file.storage_key)
    WorkspaceFile.objects.filter(pk__in=[file.pk for file in some]).delete()
    return len(some)
