"""REST views for the queue: list, edit, move, withdraw and send queued messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView
from copilot.chat import queue_commands
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import REQUEST_LIMITS
from copilot.realtime.payloads import QueueItem


class QueuedText(RequestBody):
    text: str


class QueuedPlace(RequestBody):
    position: Annotated[int, Field(ge=1, le=REQUEST_LIMITS.queued_messages)]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Queued messages, in the order in which they will be sent."""

    items: list[QueueItem]
    capacity: int


def render_queue(session_id: UUID) -> HttpResponse:
    return respond_json(
        Queue(items=chat_selectors.get_queue_items(session_id), capacity=REQUEST_LIMITS.queued_messages)
    )


class QueueView(AuthenticatedApiView):
    @document_operation("List the queued messages", answers={200: Queue})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return render_queue(chat_selectors.get_session(self.caller_id, session_id).id)


class QueuedView(AuthenticatedApiView):
    @document_operation("Edit a queued message", answers={200: Queue}, body=QueuedText)
    def patch(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.edit_queued_message(
            self.caller_id,
            session_id,
            message_id,
            parse_body(request, QueuedText).text,
            permissions=self.turn_permissions,
        )
        return render_queue(session_id)

    @document_operation("Withdraw a queued message", answers={200: Queue})
    def delete(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.remove_queued_message(self.caller_id, session_id, message_id)
        return render_queue(session_id)


class MoveView(AuthenticatedApiView):
    @document_operation("Move a queued message", answers={200: Queue}, body=QueuedPlace)
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        position = parse_body(request, QueuedPlace).position
        queue_commands.move_queued_message(self.caller_id, session_id, message_id, position)
        return render_queue(session_id)


class SendNowView(AuthenticatedApiView):
    @document_operation("Stop the running turn and send a queued message now", answers={200: Queue})
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.send_queued_message_now(self.caller_id, session_id, message_id)
        return render_queue(session_id)
