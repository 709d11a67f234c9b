"""Sessions are made, named, shaped, deleted and brought back; their todos."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypedDict
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.core.errors import Conflict, FenceLost, InvalidRequest, NotFound, RequestRefused
from copilot.accounts import preferences
from copilot.chat import selectors
from copilot.chat.announcements import publish_session_change
from copilot.chat.prompt_tags import strip_server_tags
from copilot.models import Agent, AgentVersion, Message, Session, Turn
from copilot.realtime import session_keys
from copilot.realtime.payloads import Todo


def purge_turn_rows(session_ids: Sequence[UUID], limit: int) -> int:
    """Remove up to `limit` turns of these sessions with what belongs to each; answers how many there were."""
    some = list(Turn.objects.filter(session__in=session_ids).values_list("pk", flat=True)[:limit])
    Turn.objects.filter(pk__in=some).delete()
    return len(some)


log = logging.getLogger(__name__)

MAX_TITLE_CHARACTERS = 200


def create_session(
    owner_id: int, title: str = "", *, agent_version: AgentVersion | None = None, pk: UUID | None = None
) -> Session:
    """A new conversation; its log begins with it, so that its first cursor is a real place."""
    session = Session.objects.create(
        pk=pk or uuid4(),
        owner_id=owner_id,
        title=_clean_title(title),
        title_origin="manual" if title.strip() else "",
        agent_version=agent_version,
    )
    session.refresh_from_db()
    publish_session_change(session)
    return session


@contextmanager
def create_session_for_first_message(
    owner_id: int, title: str = "", *, agent_version: AgentVersion | None = None
) -> Iterator[Session]:
    """A conversation made for its first message: if that is refused, it goes too (B7)."""
    session = create_session(owner_id, title, agent_version=agent_version)
    try:
        yield session
    except RequestRefused:
        delete_session(owner_id, session.pk)
        raise


def create_platform_session(owner_id: int, *, platform: str) -> Session:
    """A conversation that began on a chat platform, made in its caller's transaction, who tells of it afterwards (L15)."""
    session = Session.objects.create(owner_id=owner_id, platform=platform)
    session.refresh_from_db()
    return session


def get_or_create_builder_session(owner_id: int, agent: Agent) -> Session:
    """The one conversation in which this agent is built, whoever asks first (A27.6)."""
    mine = Session.objects.filter(owner=owner_id, builds=agent, deleted_at=None)
    if (found := mine.first()) is not None:
        return found
    title = _clean_title(f"Build: {agent.name}")
    try:
        with transaction.atomic():
            made = Session.objects.create(owner_id=owner_id, title=title, title_origin="manual", builds=agent)
    except IntegrityError:
        return mine.get()
    made.refresh_from_db()
    publish_session_change(made)
    return made


def create_unlisted_session(owner_id: int) -> Session:
    """A conversation that a program holds for one answer (E4.2): it stands as deep as a child, where no list looks."""
    return Session.objects.create(owner_id=owner_id, depth=1)


def list_session(owner_id: int, session_id: UUID) -> None:
    """An unlisted conversation turns out to need a person."""
    if Session.objects.filter(pk=session_id, owner=owner_id, parent=None, deleted_at=None).update(depth=0):
        publish_session_change(Session.objects.get(pk=session_id))


def update_session(
    owner_id: int,
    session_id: UUID,
    *,
    title: str | None = None,
    pinned: bool | None = None,
    archived: bool | None = None,
    allowed: bool = False,
) -> Session:
    """`allowed`: what runs unasked was changed in the same breath, and is told too."""
    session = selectors.get_session(owner_id, session_id)
    fields: list[str] = []
    if title is not None:
        session.title, session.title_origin = _clean_title(title), "manual"
        fields += ["title", "title_origin"]
    if pinned is not None:
        session.pinned = pinned
        fields.append("pinned")
    if archived is not None:
        session.archived_at = Now() if archived else None
        fields.append("archived_at")
    if fields:
        session.save(update_fields=fields)
        session.refresh_from_db()
    if fields or allowed:
        publish_session_change(session, has_new_title=title is not None, has_new_auto_approve=allowed)
    return session


class SessionSettings(TypedDict, total=False):
    """What shapes its answers; what is absent stays as it is (A30.1)."""

    personality_id: int | None
    instructions: str
    allowed_tools: list[str] | None


def update_session_settings(owner_id: int, session_id: UUID, changes: SessionSettings) -> None:
    """From the next turn on."""
    preferences.check_instructions(changes.get("instructions", ""))
    preferences.check_personality(changes.get("personality_id"))
    mine = Session.objects.filter(pk=session_id, owner=owner_id, deleted_at=None)
    if not (mine.update(**changes) if changes else mine.exists()):
        raise NotFound


_DELETE_SESSION_TREE = """
WITH RECURSIVE family AS (
    SELECT id FROM copilot_session WHERE id = %(id)s AND owner_id = %(owner)s AND deleted_at IS NULL
    UNION ALL
    SELECT child.id FROM copilot_session child JOIN family ON child.parent_id = family.id
)
UPDATE copilot_session s SET deleted_at = now() FROM family WHERE s.id = family.id AND s.deleted_at IS NULL
RETURNING s.id
"""
_RESTORE_SESSION_TREE = """
WITH RECURSIVE family AS (
    SELECT id, deleted_at FROM copilot_session
    WHERE id = %(id)s AND owner_id = %(owner)s AND deleted_at > now() - make_interval(days => %(days)s)
    UNION ALL
    SELECT child.id, child.deleted_at FROM copilot_session child
    JOIN family ON child.parent_id = family.id AND child.deleted_at = family.deleted_at
)
UPDATE copilot_session s SET deleted_at = NULL FROM family WHERE s.id = family.id RETURNING s.id
"""


def delete_session(owner_id: int, session_id: UUID) -> list[UUID]:
    """Gone from every list at once, with the sessions it started; `restore` undoes it until they are purged.

    The answer is who went. Whatever runs in them is the caller's to stop: that takes more than rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(_DELETE_SESSION_TREE, {"id": session_id, "owner": owner_id})
        gone = [row[0] for row in cursor.fetchall()]
    if not gone:
        raise NotFound
    publish_session_change(Session.objects.get(pk=session_id))
    return gone


def restore_session(owner_id: int, session_id: UUID) -> Session:
    """With the sessions that went with it."""
    days = settings.SESSION_TRASH_DAYS
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_RESTORE_SESSION_TREE, {"id": session_id, "owner": owner_id, "days": days})
            found = cursor.fetchall()
    except IntegrityError:
        raise Conflict("Its agent is built in another chat by now.", code="already_built") from None
    if not found:
        raise NotFound
    session = Session.objects.get(pk=session_id)
    publish_session_change(session)
    return session


def create_imported_session(owner_id: int, title: str, *, created_at: datetime) -> Session:
    """A conversation that was held elsewhere; its caller tells of it once its rows stand (S16)."""
    title = _clean_title(title)
    session = Session.objects.create(
        owner_id=owner_id,
        title=title,
        title_origin="manual" if title else "",
        imported=True,
        created_at=created_at,
    )
    session.refresh_from_db()
    return session


def list_purgeable_sessions(limit: int) -> list[UUID]:
    """Sessions that were deleted too long ago to be brought back, or made for an answer and left by a process that died."""
    long_ago = Now() - timedelta(days=settings.SESSION_TRASH_DAYS)
    over = Q(deleted_at__lte=long_ago) | Q(depth__gt=0, parent=None, active_at__lte=long_ago)
    return list(Session.objects.filter(over).values_list("pk", flat=True)[:limit])


def purge_session_rows(session_ids: Sequence[UUID]) -> int:
    """Remove sessions for good, once their rows are gone; first what Redis knows, which nobody could name later."""
    session_keys.delete_session_keys([str(one) for one in session_ids])
    Session.objects.filter(pk__in=session_ids).delete()
    return len(session_ids)


def set_automatic_title(session_id: UUID, title: str, *, instead_of: str) -> bool:
    """A title of the server's own, unless a person has named the session since (A18.4).

    `instead_of` is the origin it was made for. An empty title settles only that there will be no better one.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_session s
            SET title_origin = 'auto',
                title = CASE WHEN lower(%(title)s) IN ('', lower(s.title)) THEN s.title ELSE %(title)s END
            FROM copilot_session old
            WHERE s.id = %(id)s AND old.id = s.id AND s.title_origin = %(instead_of)s AND s.deleted_at IS NULL
            RETURNING s.title <> old.title
            """,
            {"id": session_id, "title": title, "instead_of": instead_of},
        )
        row = cursor.fetchone()
    changed = row is not None and bool(row[0])
    if changed:
        publish_session_change(Session.objects.get(pk=session_id), has_new_title=True)
    return changed


def set_todos(turn_id: UUID, fence: int, items: list[Todo]) -> None:
    """Replace the list, as long as the turn that does so still holds the session."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_session s SET todos = %s::jsonb FROM copilot_turn t
            WHERE t.id = %s AND t.fence = %s AND t.status = 'running' AND s.id = t.session_id
            """,
            [msgspec.json.encode(items).decode(), turn_id, fence],
        )
        if not cursor.rowcount:
            raise FenceLost(f"turn {turn_id} is not held under fence {fence}")


def _clean_title(title: str) -> str:
    title = " ".join(strip_server_tags(title).split())
    if len(title) > MAX_TITLE_CHARACTERS:
        raise InvalidRequest(f"A title may have {MAX_TITLE_CHARACTERS} characters.")
    return title


# MERGED history.forgetting: Rows of conversations that are gone for good: removed in batches, so that no statement is long (S17).


def purge_message_rows(session_ids: Sequence[UUID], limit: int) -> int:
    """Remove up to `limit` rows of these sessions; answers how many there were."""
    some = Message.objects.filter(session__in=session_ids).values("pk")[:limit]
    removed, _ = Message.objects.filter(pk__in=some).delete()
    return removed
