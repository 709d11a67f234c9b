"""Files that the agent made in a session, as clients see them (S14)."""

from __future__ import annotations

from uuid import UUID

from copilot.errors import NotFound
from copilot.events import ArtifactAdded, ArtifactView, instant
from copilot.models import Message, WorkspaceFile

MOST = 200  # the newest of a session; older ones are on the page of files


def of_session(session_id: UUID) -> list[ArtifactView]:
    """Oldest first; the versions of one name follow each other in time."""
    made = WorkspaceFile.objects.filter(
        session=session_id, source=WorkspaceFile.Source.AGENT, deleted_at=None, purged_at=None
    )
    return [_view(file) for file in made.order_by("-created_at", "-id")[:MOST]][::-1]


def added(file: WorkspaceFile) -> ArtifactAdded:
    """The event that tells of a file whose row stands."""
    view = _view(file)
    return ArtifactAdded(
        file_id=view.file_id,
        name=view.name,
        type=view.type,
        size=view.size,
        created_at=view.created_at,
        call_id=view.call_id,
    )


def answer(owner_id: int, session_id: UUID, message_id: UUID) -> str:
    """The text of an answer in the owner's own conversation, whose code blocks can be shown too."""
    said = Message.objects.filter(
        pk=message_id,
        session=session_id,
        session__owner=owner_id,
        session__deleted_at=None,
        kind=Message.Kind.ASSISTANT,
        hidden="",
    )
    text = said.values_list("content", flat=True).first()
    if text is None:
        raise NotFound
    return text


def _view(file: WorkspaceFile) -> ArtifactView:
    return ArtifactView(
        file_id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        created_at=instant(file.created_at),
        call_id=file.call_id,
    )
