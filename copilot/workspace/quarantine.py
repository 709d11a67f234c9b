"""Tells the owner of a file that a scan found something in it: by mail, and where the file came in (S4)."""

from __future__ import annotations

import logging
import smtplib
from uuid import UUID

from django.core.mail import send_mail
from django.utils.translation import gettext as _

from copilot import history, queries
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import WorkspaceFile

_log = logging.getLogger(__name__)

CODE = "file_quarantined"


def tell(file_id: UUID) -> None:
    file = WorkspaceFile.objects.select_related("owner").get(pk=file_id)
    if file.session_id is not None:
        _tell_session(file.session_id, file.owner_id)
    if file.owner.email:
        _send(file)


def _tell_session(session_id: UUID, owner_id: int) -> None:
    row_id = history.post_notice(session_id, None, CODE)
    try:
        stream.publish_now(str(session_id), [(queries.notice_posted(row_id, CODE), None)], user_id=owner_id)
    except RedisDown:
        _log.warning("the event log is unreachable; clients will catch up from the rows")


def _send(file: WorkspaceFile) -> None:
    try:
        send_mail(
            _("A file was put in quarantine"),
            _(
                "A scan found something harmful in your file “%(name)s”. It cannot be opened, downloaded or shared. "
                "You can delete it on the page of your files."
            )
            % {"name": file.name},
            None,
            [file.owner.email],
        )
    except (smtplib.SMTPException, OSError) as problem:
        _log.warning("no mail about file %s: %s", file.id, type(problem).__name__)
