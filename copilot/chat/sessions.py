"""Create, rename, configure, delete, restore and purge sessions, and keep their todo lists."""

from __future__ import annotations

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

from config.core.db import ASYNC_COMMIT
from config.core.errors import Conflict, FenceLost, InvalidRequest, NotFound, RequestRefused
from copilot.accounts import preferences
from copilot.chat import selectors
from copilot.chat.announcements import publish_session_change
from copilot.chat.prompt_tags import strip_server_tags
from copilot.models import Agent, AgentVersion, Message, Session, Turn
from copilot.realtime import session_keys
from copilot.realtime.payloads import Todo

MAX_TITLE_CHARACTERS = 200


def create_session(
    owner_id: int, title: str = "", *, agent_version: AgentVersion | None = None, pk: UUID | None = None
) -> Session:
    """Create a session and publish it, so that its event log has a first cursor."""
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
    session = create_session(owner_id, title, agent_version=agent_version)
    try:
        yield session
    except RequestRefused:
        delete_session(owner_id, session.pk)
        raise


def create_platform_session(owner_id: int, *, platform: str) -> Session:
    """Create a session that began on a chat platform; the caller publishes it after its transaction."""
    session = Session.objects.create(owner_id=owner_id, platform=platform)
    session.refresh_from_db()
    return session


def get_or_create_builder_session(owner_id: int, agent: Agent) -> Session:
    sessions = Session.objects.visible_to(owner_id).filter(built_agent=agent)
    if (existing := sessions.first()) is not None:
        return existing
    title = _clean_title(f"Build: {agent.name}")
    try:
        with transaction.atomic():
            created = Session.objects.create(
                owner_id=owner_id, title=title, title_origin="manual", built_agent=agent
            )
    except IntegrityError:
        return sessions.get()
    created.refresh_from_db()
    publish_session_change(created)
    return created


# The message that follows makes the row durable, so this commit need not wait for the disk.
_CREATE_UNLISTED_SESSION = f"""
INSERT INTO copilot_session (id, owner_id, title, title_origin, pinned, todos, fence, depth, instructions)
SELECT %(id)s, %(owner)s, '', '', false, '[]', 0, 1, %(instructions)s WHERE {ASYNC_COMMIT}
"""


def create_unlisted_session(owner_id: int, instructions: str = "") -> UUID:
    """Create a session for one answer to a program, at a depth that no list shows."""
    preferences.check_instructions(instructions)
    session_id = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            _CREATE_UNLISTED_SESSION, {"id": session_id, "owner": owner_id, "instructions": instructions}
        )
    return session_id


def list_session(owner_id: int, session_id: UUID) -> None:
    if Session.objects.visible_to(owner_id).filter(pk=session_id, parent=None).update(depth=0):
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
    """Change a session and publish it.

    `allowed`: its automatic approval was changed too, and is published.
    """
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
    """Settings that shape a session's answers; absent ones stay as they are."""

    personality_id: int | None
    instructions: str
    allowed_tools: list[str] | None


def update_session_settings(owner_id: int, session_id: UUID, changes: SessionSettings) -> None:
    preferences.check_instructions(changes.get("instructions", ""))
    preferences.check_personality(changes.get("personality_id"))
    sessions = Session.objects.visible_to(owner_id).filter(pk=session_id)
    if not (sessions.update(**changes) if changes else sessions.exists()):
        raise NotFound


_DELETE_SESSION_TREES = """
WITH RECURSIVE family AS (
    SELECT id FROM copilot_session
    WHERE id = ANY(%(ids)s) AND owner_id = ANY(%(owners)s) AND deleted_at IS NULL
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
    """Delete a session and its sub-sessions from every list; restore_session undoes it until they are purged.

    Return the deleted ids. The caller stops what runs in them.
    """
    deleted_ids = _delete_trees([session_id], [owner_id])
    if not deleted_ids:
        raise NotFound
    publish_session_change(Session.objects.get(pk=session_id))
    return deleted_ids


def delete_unlisted_sessions(sessions: Sequence[tuple[int, UUID]]) -> list[UUID]:
    """Delete sessions, given as owner and id, whose one answer was delivered. No client follows them: nothing is published.

    Return their sub-sessions, which were deleted too. The caller stops what runs in them.
    """
    owner_ids, session_ids = zip(*sessions, strict=True)
    return [deleted for deleted in _delete_trees(session_ids, owner_ids) if deleted not in session_ids]


def _delete_trees(session_ids: Sequence[UUID], owner_ids: Sequence[int]) -> list[UUID]:
    with connection.cursor() as cursor:
        cursor.execute(_DELETE_SESSION_TREES, {"ids": list(session_ids), "owners": list(owner_ids)})
        return [row[0] for row in cursor.fetchall()]


def restore_session(owner_id: int, session_id: UUID) -> Session:
    days = settings.SESSION_TRASH_DAYS
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_RESTORE_SESSION_TREE, {"id": session_id, "owner": owner_id, "days": days})
            restored = cursor.fetchall()
    except IntegrityError:
        raise Conflict("Another chat is building this agent now.", code="already_built") from None
    if not restored:
        raise NotFound
    session = Session.objects.get(pk=session_id)
    publish_session_change(session)
    return session


def create_imported_session(owner_id: int, title: str, *, created_at: datetime) -> Session:
    """Create a session for an imported conversation; the caller publishes it once its messages are stored."""
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
    cutoff = Now() - timedelta(days=settings.SESSION_TRASH_DAYS)
    purgeable = Q(deleted_at__lte=cutoff) | Q(depth__gt=0, parent=None, active_at__lte=cutoff)
    return list(Session.objects.filter(purgeable).values_list("pk", flat=True)[:limit])


def purge_session_rows(session_ids: Sequence[UUID]) -> int:
    # Redis first: once the rows are gone, nothing could name its keys.
    session_keys.delete_session_keys([str(session_id) for session_id in session_ids])
    Session.objects.filter(pk__in=session_ids).delete()
    return len(session_ids)


def set_automatic_title(session_id: UUID, title: str, *, instead_of: str) -> bool:
    """Set a generated title, unless a person has named the session since; return whether it changed.

    `instead_of` is the title origin it was made for. An empty title only records that no better one will
    come.
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
        raise InvalidRequest(f"Titles can be up to {MAX_TITLE_CHARACTERS} characters.")
    return title


# --- Purging: in batches, so that no statement takes long --------------------------------------------


def purge_message_rows(session_ids: Sequence[UUID], limit: int) -> int:
    batch = Message.objects.filter(session__in=session_ids).values("pk")[:limit]
    removed, _ = Message.objects.filter(pk__in=batch).delete()
    return removed


def purge_turn_rows(session_ids: Sequence[UUID], limit: int) -> int:
    batch = list(Turn.objects.filter(session__in=session_ids).values_list("pk", flat=True)[:limit])
    Turn.objects.filter(pk__in=batch).delete()
    return len(batch)
