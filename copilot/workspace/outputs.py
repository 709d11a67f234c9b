"""What calls have put out, read again by those who may: the session's own, and what it was started for (A22.5)."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q

from copilot.commands import as_uuid
from copilot.errors import NotFound
from copilot.models import Message, Session, WorkspaceFile
from copilot.workspace import files


def read(user_id: int, session_id: UUID, call_id: str) -> str:
    """What a call put out, or the whole of a long follow-up, named by its message's id (A22.5).

    Of the session or, where it knows no such call, of the one that started it, and so on.
    """
    for place in _with_ancestors(user_id, session_id):
        if (text := _output_in(place, call_id)) is not None:
            return text
    raise NotFound("There is no output of such a call in this session.")


def sources(user_id: int, session_id: UUID, call_id: str) -> tuple[str, ...]:
    """Where untrusted text in the output of a call came from."""
    places = _with_ancestors(user_id, session_id)
    rows = Message.objects.filter(_says(call_id), session_id__in=places, data__has_key="sources")
    return tuple(dict.fromkeys(str(one) for row in rows.only("data") for one in row.data["sources"]))


def _with_ancestors(user_id: int, session_id: UUID) -> list[UUID]:
    """From the session to its root, which is three levels up at most (A21.2); none for a stranger."""
    up = ("pk", "parent", "parent__parent", "parent__parent__parent")
    line = Session.objects.filter(pk=session_id, owner_id=user_id).values_list(*up).first()
    return [place for place in line or () if place is not None]


def _output_in(session_id: UUID, call_id: str) -> str | None:
    outputs = WorkspaceFile.objects.filter(
        session_id=session_id, call_id=call_id, source=WorkspaceFile.Source.TOOL_OUTPUT, purged_at=None
    )
    file = outputs.order_by("-created_at").first()
    if file is not None:
        with files.open(file) as stream:
            return stream.read().decode()
    row = Message.objects.filter(_says(call_id), session_id=session_id).only("content").first()
    return None if row is None else row.content


def _says(call_id: str) -> Q:
    result = Q(kind=Message.Kind.TOOL_RESULT, call_id=call_id)
    message_id = as_uuid(call_id)
    return result if message_id is None else result | Q(kind=Message.Kind.USER, pk=message_id)
