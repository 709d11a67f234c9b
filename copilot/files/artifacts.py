"""Files that the agent made in a session, as clients see them (S14)."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db.models import QuerySet

from config.core.errors import NotFound
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.models import Message, WorkspaceFile
from copilot.realtime import event_log
from copilot.realtime.events import ArtifactAdded, ArtifactRemoved
from copilot.realtime.payloads import ArtifactPayload, format_timestamp

_log = logging.getLogger(__name__)

MAX_ARTIFACTS = 200  # the newest of a session; older ones are on the page of files


def list_session_artifacts(session_id: UUID) -> list[ArtifactPayload]:
    """Oldest first; the versions of one name follow each other in time."""
    return _view_newest(_live_artifacts().filter(session=session_id))


def list_turn_artifacts(turn_id: UUID) -> list[ArtifactPayload]:
    """What a turn's calls have made, oldest first; of several versions of a name the last."""
    calls = Message.objects.filter(turn=turn_id, kind=Message.Kind.TOOL_CALL, hidden="").exclude(call_id=None)
    made = _live_artifacts().filter(session__turns=turn_id, call_id__in=calls.values("call_id"))
    return list({file.name: file for file in _view_newest(made)}.values())


def _live_artifacts() -> QuerySet[WorkspaceFile]:
    return WorkspaceFile.objects.filter(source=WorkspaceFile.Source.AGENT, deleted_at=None, purged_at=None)


def _view_newest(made: QuerySet[WorkspaceFile]) -> list[ArtifactPayload]:
    return [_to_artifact_view(file) for file in made.order_by("-created_at", "-id")[:MAX_ARTIFACTS]][::-1]


def make_added_event(file: WorkspaceFile) -> ArtifactAdded:
    """The event that tells of a file whose row stands."""
    view = _to_artifact_view(file)
    return ArtifactAdded(
        file_id=view.file_id,
        name=view.name,
        type=view.type,
        size=view.size,
        created_at=view.created_at,
        call_id=view.call_id,
    )


def publish_artifact_change(file: WorkspaceFile) -> None:
    """That a file went into the trash, or came back to the chat that made it; its row says so already.

    Any chat may have it open. What was made in none has a log of its own, named by the file.
    """
    made_in = file.session_id if file.source == WorkspaceFile.Source.AGENT else None
    if made_in is None and file.deleted_at is None:
        return
    news = make_added_event(file) if file.deleted_at is None else ArtifactRemoved(file_id=str(file.pk))
    try:
        event_log.append_events(str(made_in or file.pk), [(news, None)], user_id=file.owner_id)
    except REDIS_OUTAGE_ERRORS:
        _log.warning("the event log is unreachable; clients will catch up from the rows")


def get_answer_text(owner_id: int, session_id: UUID, message_id: UUID) -> str:
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


def _to_artifact_view(file: WorkspaceFile) -> ArtifactPayload:
    return ArtifactPayload(
        file_id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        created_at=format_timestamp(file.created_at),
        call_id=file.call_id,
    )
