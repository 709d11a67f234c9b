"""Scan files with the configured hook before anybody may read them, and tell the owner what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal
from uuid import UUID

import structlog
from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from config.core.emails import send_email
from config.core.errors import ScanFailed
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import messages
from copilot.chat import selectors as chat_selectors
from copilot.models import WorkspaceFile
from copilot.realtime import event_log

log = structlog.get_logger(__name__)


ScanVerdict = Literal["clean", "infected"]


@dataclass(frozen=True, kw_only=True)
class ScannedFile:
    """The metadata a hook gets besides the bytes."""

    file_id: UUID
    name: str
    mime: str
    size_bytes: int
    sha256: str


ScanHook = Callable[[IO[bytes], ScannedFile], ScanVerdict]


def is_scan_enabled() -> bool:
    return bool(settings.WORKSPACE_SCAN_HOOK)


def load_hook() -> ScanHook:
    """Import the hook. Raises ImportError for a bad setting; a system check looks first."""
    found = import_string(settings.WORKSPACE_SCAN_HOOK)
    if not callable(found):
        raise ImportError(f"{settings.WORKSPACE_SCAN_HOOK} cannot be called")
    return found  # type: ignore[no-any-return]


def run_hook(stream: IO[bytes], meta: ScannedFile) -> ScanVerdict:
    """Run the hook and validate its verdict. Exceptions of the hook pass through."""
    verdict = load_hook()(stream, meta)
    if verdict not in ("clean", "infected"):
        raise ScanFailed(f"the hook answered {verdict!r}")
    return verdict


NOTICE_CODE = "file_quarantined"


def notify_owner(file_id: UUID) -> None:
    file = WorkspaceFile.objects.select_related("owner").get(pk=file_id)
    if file.session_id is not None:
        _post_notice(file.session_id, file.owner_id)
    send_email(
        [file.owner.email],
        _("One of your files was quarantined"),
        _(
            "A scan found something harmful in your file “%(name)s”. It can't be opened, downloaded or shared. "
            "You can delete it on the Files page."
        )
        % {"name": file.name},
    )


def _post_notice(session_id: UUID, owner_id: int) -> None:
    row_id = messages.post_notice(session_id, None, NOTICE_CODE)
    try:
        event_log.append_events(
            str(session_id),
            [(chat_selectors.build_notice_posted(row_id, NOTICE_CODE), None)],
            user_id=owner_id,
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("quarantine_notice_not_published", session_id=str(session_id))
