"""Publish, change, revoke and count shares. The only writer of shares and their allow-lists."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypedDict
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q, QuerySet, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.utils import timezone

from config.core.emails import send_email
from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import JSON
from copilot import metrics
from copilot.chat import selectors as chat_selectors
from copilot.exports import archives, documents, imports
from copilot.exports.documents import ExportedRow
from copilot.files import services as files
from copilot.models import Session, Share, SharedFile, WorkspaceFile
from copilot.realtime import payloads
from copilot.sharing import access, drafts
from copilot.sharing import payloads as sharing_payloads
from copilot.sharing.drafts import ShareDraft, ShareRequest
from copilot.sharing.payloads import SharePayload

log = structlog.get_logger(__name__)

MIN_PASSWORD_CHARACTERS, MAX_PASSWORD_CHARACTERS = 8, 128
MAX_PAGE_SHARES = 100
MAX_OFFSET = 10_000
MAX_NOTE_CHARACTERS = 500
DAY_SECONDS = 24 * 3600

ShareState = Literal["live", "expired", "taken_down"]


class ShareUpdate(TypedDict, total=False):
    """The fields an owner may change of a share; absent fields stay as they are."""

    expires_in: int | None  # seconds from now; None means never
    password: str  # empty removes the password
    show_author: bool


@dataclass(frozen=True, kw_only=True)
class ShareTerms:
    """The lifetime and password of a share."""

    expires_in: int | None = None
    password: str = ""


@dataclass(frozen=True, kw_only=True)
class SharePage:
    items: list[Share]
    offset: int
    has_more: bool


# --- Publish -----------------------------------------------------------------------------------------


def preview_share(owner_id: int, session_id: UUID, request: ShareRequest) -> ShareDraft:
    return drafts.draft_session_share(chat_selectors.get_session(owner_id, session_id), request)


def publish_session(owner_id: int, session_id: UUID, request: ShareRequest, terms: ShareTerms) -> Share:
    """Publish a frozen snapshot under a new link; the previous link is revoked in the same transaction."""
    checked_terms = _check_terms(terms)
    with transaction.atomic():
        session = _lock_session(owner_id, session_id)
        draft = drafts.draft_session_share(session, request, hold_files=True)
        _end_shares(Share.objects.filter(session=session), Share.Reason.REPLACED)
        share = _create_share(
            Share(
                kind=Share.Kind.CONVERSATION,
                session=session,
                owner_id=owner_id,
                through_sequence=draft.through_sequence,
                options=_share_options(session.owner, request),
            ),
            draft.payload,
            draft.list_public_files(),
            checked_terms,
        )
    _record_act("made", share)
    return share


def publish_file(owner_id: int, file_id: UUID, terms: ShareTerms, *, show_author: bool = False) -> Share:
    """Publish one file under a new link; the previous link is revoked in the same transaction."""
    checked_terms = _check_terms(terms)
    with transaction.atomic():
        file = _lock_file(owner_id, file_id)
        files.check_scan(file)
        _end_shares(Share.objects.filter(file=file), Share.Reason.REPLACED)
        share = _create_share(
            Share(
                kind=Share.Kind.FILE,
                file=file,
                owner_id=owner_id,
                options=_share_options(file.owner, ShareRequest(show_author=show_author)),
            ),
            drafts.build_file_payload(file),
            [file],
            checked_terms,
        )
    _record_act("made", share)
    return share


@dataclass(frozen=True, kw_only=True)
class _CheckedTerms:
    password_hash: str
    expires: Combinable | None


def _check_terms(terms: ShareTerms) -> _CheckedTerms:
    """Check before any row is locked: hashing a password takes a while."""
    return _CheckedTerms(
        password_hash=_hash_password(terms.password), expires=_expiry_expression(terms.expires_in)
    )


def _hash_password(password: str) -> str:
    if not password:
        return ""
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InvalidRequest(
            f"Use a password of {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters.",
            field="password",
        )
    return make_password(password)


def _expiry_expression(seconds: int | None) -> Combinable | None:
    """Return the expiry by the database's clock, which also judges it."""
    if seconds is None:
        return None
    if not 0 < seconds <= settings.SHARE_MAX_DAYS * DAY_SECONDS:
        raise InvalidRequest(
            f"Links can last up to {settings.SHARE_MAX_DAYS} days, or never expire.", field="expires_in"
        )
    return Now() + Value(timedelta(seconds=seconds))


def _share_options(owner: User, request: ShareRequest) -> dict[str, object]:
    return {
        "include_reasoning": request.include_reasoning,
        "include_tools": request.include_tools,
        "author": drafts.format_author(owner) if request.show_author else "",
        "allow_continue": request.allow_continue,
    }


def _create_share(
    share: Share, payload: SharePayload, public: list[WorkspaceFile], terms: _CheckedTerms
) -> Share:
    share.payload = msgspec.to_builtins(payload)
    share.password_hash = terms.password_hash
    share.expires_at = terms.expires
    share.save(force_insert=True)
    SharedFile.objects.bulk_create(SharedFile(share=share, file=file) for file in public)
    share.refresh_from_db()
    return share


def _lock_session(owner_id: int, session_id: UUID) -> Session:
    """Lock the session against sharing and deletion until commit; a running turn can still write rows."""
    rows = Session.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
    session = rows.filter(pk=session_id, owner=owner_id, deleted_at=None).first()
    if session is None:
        raise NotFound
    return session


def _lock_file(owner_id: int, file_id: UUID) -> WorkspaceFile:
    rows = WorkspaceFile.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
    rows = rows.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT)
    file = rows.filter(pk=file_id, owner=owner_id, deleted_at=None, purged_at=None).first()
    if file is None:
        raise NotFound
    return file


# --- Change ------------------------------------------------------------------------------------------


def get_session_share(owner_id: int, session_id: UUID) -> Share:
    return _get_one(_unrevoked_shares(owner_id).filter(session=session_id, session__deleted_at=None))


def get_file_share(owner_id: int, file_id: UUID) -> Share:
    return _get_one(_unrevoked_shares(owner_id).filter(file=file_id))


def get_share(owner_id: int, share_id: UUID) -> Share:
    return _get_one(_unrevoked_shares(owner_id).filter(pk=share_id))


def _unrevoked_shares(owner_id: int) -> QuerySet[Share]:
    return Share.objects.unrevoked().filter(owner=owner_id)


def _get_one(rows: QuerySet[Share]) -> Share:
    share = rows.select_related("owner").first()
    if share is None:
        raise NotFound
    return share


def update_share(share: Share, changes: ShareUpdate) -> Share:
    """Change the terms, but neither content nor token. A new password locks everybody out."""
    values: dict[str, object] = {}
    if "expires_in" in changes:
        values["expires_at"] = _expiry_expression(changes["expires_in"])
    if "password" in changes:
        values["password_hash"] = _hash_password(changes["password"])
        values["password_version"] = F("password_version") + 1
    if "show_author" in changes:
        author = drafts.format_author(share.owner) if changes["show_author"] else ""
        values["options"] = {**share.options, "author": author}
    rows = _unrevoked_shares(share.owner_id).filter(pk=share.pk)
    if not (rows.update(**values) if values else rows.exists()):
        raise NotFound
    share.refresh_from_db()
    return share


# --- Revoke ------------------------------------------------------------------------------------------


def revoke_share(share: Share) -> None:
    """Revoke a share for its owner. The page and its files are gone on commit."""
    if not _end_shares(Share.objects.filter(pk=share.pk), Share.Reason.REVOKED):
        raise NotFound
    _record_act("revoked", share)


def revoke_session_share(owner_id: int, session_id: UUID) -> None:
    """Revoke under the session's lock, so that it cannot interleave with publishing."""
    with transaction.atomic():
        session = _lock_session(owner_id, session_id)
        if not _end_shares(Share.objects.filter(session=session), Share.Reason.REVOKED):
            raise NotFound
    metrics.shares.labels(act="revoked").inc()


def revoke_file_share(owner_id: int, file_id: UUID) -> None:
    with transaction.atomic():
        file = _lock_file(owner_id, file_id)
        if not _end_shares(Share.objects.filter(file=file), Share.Reason.REVOKED):
            raise NotFound
    metrics.shares.labels(act="revoked").inc()


def revoke_all_shares(owner_id: int) -> int:
    return _end_shares(Share.objects.filter(owner=owner_id), Share.Reason.OWNER_GONE)


def purge_owner_shares(owner_id: int, limit: int) -> int:
    batch = list(Share.objects.filter(owner=owner_id).values_list("pk", flat=True)[:limit])
    Share.objects.filter(pk__in=batch).delete()
    return len(batch)


def take_down_share(share: Share, note: str) -> bool:
    """Take a share down for staff, with a reason the owner is told. Return False if it had ended already."""
    note = " ".join(note.split())[:MAX_NOTE_CHARACTERS]
    if not note:
        raise InvalidRequest("Give a reason for taking the share down.")
    with transaction.atomic():
        ended = _end_shares(Share.objects.filter(pk=share.pk), Share.Reason.TAKEN_DOWN, note)
        if ended:
            transaction.on_commit(lambda: _email_owner(share, note), robust=True)
    if ended:
        _record_act("taken_down", share)
    return bool(ended)


def _end_shares(rows: QuerySet[Share], reason: Share.Reason, note: str = "") -> int:
    """Revoke shares and delete their allow-lists, so that no other route reaches their files."""
    with transaction.atomic():
        share_ids = list(
            rows.filter(revoked_at=None).select_for_update(of=("self",)).values_list("pk", flat=True)
        )
        ended = Share.objects.filter(pk__in=share_ids).update(
            revoked_at=Now(), revoke_reason=reason, revoke_note=note
        )
        SharedFile.objects.filter(share__in=share_ids).delete()
    return ended


def _record_act(act: str, share: Share) -> None:
    metrics.shares.labels(act=act).inc()
    log.info("share_changed", act=act, share_id=str(share.pk))


def _email_owner(share: Share, note: str) -> None:
    title = share.payload.get("title") or "Untitled"
    send_email(
        [share.owner.email],
        "A link you shared was taken down",
        f"Your shared link “{title}” was taken down by our staff and no longer works.\n\n"
        f"Reason: {note}\n\nYour chat and your files are not affected.\n",
    )


# --- List, count and purge ---------------------------------------------------------------------------


def get_share_page(
    owner_id: int,
    *,
    session_id: UUID | None = None,
    file_id: UUID | None = None,
    limit: int = 50,
    offset: int = 0,
) -> SharePage:
    limit, offset = min(max(limit, 1), MAX_PAGE_SHARES), min(max(offset, 0), MAX_OFFSET)
    shown = Share.objects.filter(Q(revoked_at=None) | Q(revoke_reason=Share.Reason.TAKEN_DOWN))
    found = shown.filter(owner=owner_id, purged_at=None)
    if session_id is not None:
        found = found.filter(session=session_id)
    if file_id is not None:
        found = found.filter(file=file_id)
    rows = list(found.order_by("-created_at", "pk")[offset : offset + limit + 1])
    return SharePage(items=rows[:limit], offset=offset, has_more=len(rows) > limit)


def find_public_files(file_ids: Iterable[UUID]) -> set[UUID]:
    """Return the files that a live link opens; deleting them breaks that link."""
    listed = SharedFile.objects.filter(file__in=list(file_ids), share__revoked_at=None)
    unexpired = Q(share__expires_at=None) | Q(share__expires_at__gt=Now())
    return set(listed.filter(unexpired).values_list("file_id", flat=True))


def get_share_state(share: Share) -> ShareState:
    """Return the state to show to the owner. Whether a link opens is decided by the database."""
    if share.revoked_at is not None:
        return "taken_down"
    return "expired" if share.expires_at is not None and share.expires_at <= timezone.now() else "live"


def get_share_url(share: Share) -> str:
    return f"{settings.SITE_URL}/share/{share.token}"


def count_share_view(share: Share) -> None:
    Share.objects.filter(pk=share.pk).update(view_count=F("view_count") + 1, last_viewed_at=Now())


def purge_due_shares(limit: int = 100) -> int:
    """Empty shares that expired or were revoked long ago, and return how many."""
    long_ago = Now() - timedelta(days=settings.SHARE_PURGE_DAYS)
    due = Share.objects.filter(Q(expires_at__lt=long_ago) | Q(revoked_at__lt=long_ago), purged_at=None)
    with transaction.atomic():
        ids = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        SharedFile.objects.filter(share__in=ids).delete()
        return Share.objects.filter(pk__in=ids).update(payload={}, purged_at=Now())


# --- Continue a share in the reader's own account ----------------------------------------------------


MAX_IN_MEMORY_BYTES = 1024 * 1024
NOT_SHARED_TEXT = "(not shared)"  # in place of results that the owner did not publish


def can_continue(share: Share) -> bool:
    """Return whether the owner allowed it. Only sessions can be continued; files are simply downloaded."""
    return share.kind == Share.Kind.CONVERSATION and share.options.get("allow_continue") is True


def import_share(reader_id: int, share: Share) -> Session:
    """Create a session of the reader's own from the payload. Refused if the reader already imported it."""
    found = access.list_shared_files(share)
    with tempfile.SpooledTemporaryFile(max_size=MAX_IN_MEMORY_BYTES) as archive:
        archives.write_archive(
            archive, "conversation.json", found, lambda paths: _build_document(share, found, paths)
        )
        archive.seek(0)
        return imports.import_document(reader_id, archive)


def _build_document(
    share: Share, found: Sequence[WorkspaceFile], paths: Mapping[UUID, str]
) -> Iterator[bytes]:
    """Build the same bytes every time, so that a second import is recognised."""
    payload = access.load_payload(share)
    created_at = payloads.format_timestamp(share.created_at)
    head = documents.DocumentHead(
        exported_at=created_at,
        app_version=settings.VERSION,
        session=documents.ExportedSession(title=payload.title, created_at=created_at, model_tier="standard"),
    )
    listed = [
        documents.ExportedFile(
            id=str(file.pk),
            name=file.name,
            mime=file.mime,
            size=file.size_bytes,
            sha256=file.sha256,
            path=paths.get(file.pk),
        )
        for file in found
    ]
    author = share.options.get("author")
    lines = _build_rows(payload.messages, author if isinstance(author, str) else "")
    return documents.encode_document(head, documents.group_messages(lines), listed)


def _build_rows(entries: Iterable[sharing_payloads.SharedEntry], author: str) -> Iterator[ExportedRow]:
    for number, entry in enumerate(entries, start=1):
        match entry:
            case sharing_payloads.Said():
                yield ExportedRow(
                    id=f"m{number}",
                    sequence=2 * number,
                    kind=entry.role,
                    text=entry.text,
                    created_at=entry.created_at,
                    author=(entry.author or author) if entry.role == "user" else "",
                    attachments=sharing_payloads.find_file_ids(entry.attachments),
                )
            case sharing_payloads.Thought():
                yield _make_row(number, "reasoning", entry.text, entry.created_at)
            case sharing_payloads.Step():
                yield from _build_call_rows(number, entry)


def _build_call_rows(number: int, step: sharing_payloads.Step) -> Iterator[ExportedRow]:
    call_data: dict[str, JSON] = {"tool": step.tool, "arguments": _parse_arguments(step.arguments)}
    result_data: dict[str, JSON] = {"tool": step.tool, "success": step.outcome == "done", "duration_ms": 0}
    yield _make_row(number, "tool_call", "", step.created_at, call_data)
    yield _make_row(number, "tool_result", step.output or NOT_SHARED_TEXT, step.created_at, result_data)


def _make_row(
    number: int, kind: str, text: str, created_at: str, data: Mapping[str, JSON] | None = None
) -> ExportedRow:
    """Make a row. A call and its result get adjacent sequence numbers."""
    return ExportedRow(
        id=f"m{number}-{kind}",
        sequence=2 * number + (kind == "tool_result"),
        kind=kind,
        text=text,
        created_at=created_at,
        data=data or {},
        call_id=f"c{number}" if data else "",
    )


def _parse_arguments(text: str) -> dict[str, JSON]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}
