"""Tickets over REST: one socket may be opened with each, by a page that has no cookie here (E3)."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot.api.authentication import credential_of
from copilot.api.doors import Door
from copilot.api.parsing import Body, body_of
from copilot.live import tickets


class Nothing(Body):
    """An empty object."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    ticket: str
    expires_in_seconds: int


class TicketsView(Door):
    write_scopes = ("read", "chat")  # a socket does both

    @operation("Get a ticket for one socket", answers={201: Ticket}, body=Nothing)
    def post(self, request: Request) -> HttpResponse:
        body_of(request, Nothing)
        ticket = tickets.issue(self.caller_id, self.caller_scopes, credential_of(request).proof)
        return answer(Ticket(ticket=ticket, expires_in_seconds=tickets.TICKET_SECONDS), 201)
