"""What changed of a session is told in its log, or noted for the sweep when the log is away (T8.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db import DatabaseError
from django.db.models.functions import Now

from copilot import queries
from copilot.awaited import auto_approve_of
from copilot.events import Event, SessionChanged, TitleChanged, instant
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Session

log = logging.getLogger(__name__)


def tell(
    session_id: UUID,
    user_id: int,
    happened: Sequence[tuple[Event, str | None]],
    *,
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """Log what stands in the rows; when the log is away, the sweep tells the whole page once it is back."""
    try:
        return stream.publish_now(str(session_id), happened, user_id=user_id, name=name, wake=wake)
    except RedisDown:
        log.warning("the event log is unreachable; clients will catch up from the rows")
        note_untold(session_id)
        return stream.NO_CURSOR


def note_untold(*session_ids: UUID) -> None:
    """Something of these sessions stands in their rows and not in their logs."""
    try:
        Session.objects.filter(pk__in=session_ids).update(untold_at=Now())
    except DatabaseError:
        log.warning("what was not told could not be noted either: the database is away too")


@dataclass(frozen=True)
class Untold:
    session_id: UUID
    at: datetime


def untold(limit: int = 200) -> list[Untold]:
    rows = Session.objects.filter(untold_at__isnull=False).order_by("untold_at")
    return [Untold(pk, at) for pk, at in rows.values_list("pk", "untold_at")[:limit] if at is not None]


def note_told(one: Untold) -> None:
    """Unless something went untold again meanwhile."""
    Session.objects.filter(pk=one.session_id, untold_at=one.at).update(untold_at=None)


def publish_change(session: Session, *, titled: bool = False, allowed: bool = False) -> str:
    state = queries.state_of(session.pk)
    change = SessionChanged(
        title=session.title,
        pinned=session.pinned,
        archived=session.archived_at is not None,
        state=state,
        deleted=session.deleted_at is not None,
        child=session.depth > 0,
        auto_approve=auto_approve_of(session) if allowed else None,
        platform=session.platform,
        active_at=instant(session.active_at),
    )
    happened: list[tuple[Event, str | None]] = [(change, None)]
    if titled:
        origin: Literal["auto", "manual"] = "auto" if session.title_origin == "auto" else "manual"
        happened.insert(0, (TitleChanged(title=session.title, origin=origin), None))
    return tell(session.pk, session.owner_id, happened)
