"""List the files that the agent made in a session, and publish events about them."""

from __future__ import annotations

from uuid import UUID

import structlog
from django.db.models import QuerySet

from config.core.errors import NotFound
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.models import Message, WorkspaceFile
from copilot.realtime import event_log
from copilot.realtime.events import ArtifactAdded, ArtifactRemoved
from copilot.realtime.payloads import ArtifactPayload, format_timestamp

log = structlog.get_logger(__name__)

MAX_ARTIFACTS = 200  # the newest of a session; older ones are on the files page


def list_session_artifacts(session_id: UUID) -> list[ArtifactPayload]:
    """Return the newest artifacts, oldest first; versions of one name are in order of time."""
    return _view_newest(_live_artifacts().filter(session=session_id))


def list_turn_artifacts(turn_id: UUID) -> list[ArtifactPayload]:
    """Return the files that a turn's calls made, oldest first; of several versions of a name the last."""
    calls = Message.objects.filter(turn=turn_id, kind=Message.Kind.TOOL_CALL, hidden="").exclude(call_id=None)
    artifacts = _live_artifacts().filter(session__turns=turn_id, call_id__in=calls.values("call_id"))
    return list({file.name: file for file in _view_newest(artifacts)}.values())


def _live_artifacts() -> QuerySet[WorkspaceFile]:
    return WorkspaceFile.objects.available().filter(source=WorkspaceFile.Source.AGENT)


def _view_newest(artifacts: QuerySet[WorkspaceFile]) -> list[ArtifactPayload]:
    return [_to_artifact_view(file) for file in artifacts.order_by("-created_at", "-id")[:MAX_ARTIFACTS]][
        ::-1
    ]


def make_added_event(file: WorkspaceFile) -> ArtifactAdded:
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
    """Publish that a file was trashed, or restored to the chat that made it. Its row is already committed.

    Any chat may have the file open. A file that was not made in a chat has an event log of its own, named by
    the file.
    """
    session_id = file.session_id if file.source == WorkspaceFile.Source.AGENT else None
    if session_id is None and file.deleted_at is None:
        return
    event = make_added_event(file) if file.deleted_at is None else ArtifactRemoved(file_id=str(file.pk))
    try:
        event_log.append_events(str(session_id or file.pk), [(event, None)], user_id=file.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("artifact_event_not_published", file_id=str(file.pk))


def get_answer_text(owner_id: int, session_id: UUID, message_id: UUID) -> str:
    """Return the text of an answer in the owner's own session, whose code blocks can be previewed."""
    answers = Message.objects.filter(
        pk=message_id,
        session=session_id,
        session__owner=owner_id,
        session__deleted_at=None,
        kind=Message.Kind.ASSISTANT,
        hidden="",
    )
    text = answers.values_list("content", flat=True).first()
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
