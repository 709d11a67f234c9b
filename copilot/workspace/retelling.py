"""A conversation that a caller brings along becomes a session with a past: rows of turns that are over (E4)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from copilot import history, sessions, turns
from copilot.errors import InvalidRequest
from copilot.events import JSON
from copilot.models import Session
from copilot.workspace import incoming, placing

ORIGIN = "import"
NO_FILES = placing.Names(stored={}, missing={})


def retell(
    owner_id: int,
    messages: Sequence[dict[str, JSON]],
    *,
    at: str,
    instructions: str,
    listed: bool,
    session_id: UUID | None = None,
) -> Session:
    """`messages` have the form of the conversation document (S15), and are checked like one.

    One that is not listed is for one answer; whoever made it removes it.
    """
    document = _checked(messages, at)
    session = sessions.create(owner_id, pk=session_id) if listed else sessions.create_unlisted(owner_id)
    if instructions:
        sessions.shape(owner_id, session.pk, {"instructions": instructions})
    if document.messages:
        placed = placing.placed(document, NO_FILES)
        with transaction.atomic():
            accepted = history.bring_in(session.pk, placed.rows, origin=ORIGIN)
            turns.record_past(session.pk, placed.turns, origin=ORIGIN, accepted=accepted)
    return session


def _checked(messages: Sequence[dict[str, JSON]], at: str) -> incoming.Document:
    try:
        return incoming.read_value(
            {
                "schema": "pilothouse.conversation/1",
                "exported_at": at,
                "app_version": "",
                "session": {"title": "", "created_at": at, "model_tier": ""},
                "messages": list(messages),
                "files": [],
            }
        )
    except incoming.InvalidDocument as invalid:
        raise InvalidRequest("The messages cannot be taken.", hint=invalid.hint) from invalid
