"""REST view that issues one-use tickets, for clients without a cookie that open a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json
from copilot.api.authentication import get_credential
from copilot.api.base import AuthenticatedApiView
from copilot.realtime import authentication


class Nothing(RequestBody):
    """An empty object."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    ticket: str
    expires_in_seconds: int


class TicketsView(AuthenticatedApiView):
    write_scopes = ("read", "chat")  # a socket both reads and sends

    @document_operation("Get a ticket that opens one WebSocket", answers={201: Ticket}, body=Nothing)
    def post(self, request: Request) -> HttpResponse:
        parse_body(request, Nothing)
        ticket = authentication.issue_ticket(
            self.caller_id, self.caller_scopes, get_credential(request).proof
        )
        return respond_json(
            Ticket(ticket=ticket, expires_in_seconds=authentication.TICKET_LIFETIME_SECONDS), 201
        )
