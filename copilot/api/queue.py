"""The queue over REST: what waits behind the running turn, and what its owner may do with it (T6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import dispatch, queries
from copilot.api.doors import Door
from copilot.api.parsing import Body, body_of
from copilot.commands import LIMITS
from copilot.events import QueueItem


class QueuedText(Body):
    text: str


class QueuedPlace(Body):
    position: Annotated[int, Field(ge=1, le=LIMITS.queued_messages)]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """In the order in which they will be taken."""

    items: list[QueueItem]
    capacity: int


def queue_of(session_id: UUID) -> HttpResponse:
    return answer(Queue(items=queries.queue_items(session_id), capacity=LIMITS.queued_messages))


class QueueView(Door):
    @operation("List what waits", answers={200: Queue})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return queue_of(queries.session_of(self.caller_id, session_id).id)


class QueuedView(Door):
    @operation("Edit a waiting message", answers={200: Queue}, body=QueuedText)
    def patch(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        dispatch.edit_queued(
            self.caller_id,
            session_id,
            message_id,
            body_of(request, QueuedText).text,
            permissions=self.turn_permissions,
        )
        return queue_of(session_id)

    @operation("Take a waiting message out", answers={200: Queue})
    def delete(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        dispatch.remove_queued(self.caller_id, session_id, message_id)
        return queue_of(session_id)


class MoveView(Door):
    @operation("Move a waiting message", answers={200: Queue}, body=QueuedPlace)
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        position = body_of(request, QueuedPlace).position
        dispatch.move_queued(self.caller_id, session_id, message_id, position)
        return queue_of(session_id)


class SendNowView(Door):
    @operation("Send a waiting message now, interrupting the turn", answers={200: Queue})
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        dispatch.send_now(self.caller_id, session_id, message_id)
        return queue_of(session_id)
