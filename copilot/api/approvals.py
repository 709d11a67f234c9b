"""Decisions over REST about calls that wait for a person (A11.4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import dispatch
from copilot.api.doors import Door
from copilot.api.parsing import Body, body_of
from copilot.commands import DECISIONS, FEEDBACK_CHARACTERS, DecideCall, decisions_of

Feedback = Annotated[str, Field(max_length=FEEDBACK_CHARACTERS)]


class Decision(Body):
    """Changed arguments go with an approval, a reason with a rejection."""

    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: Feedback = ""


class Decisions(Body):
    """All of them count, or none; calls that are not mentioned stay open."""

    decisions: Annotated[list[DecideCall], Field(min_length=1, max_length=DECISIONS)]


class DecideView(Door):
    @operation("Decide about a call; the first decision wins", answers={200: dispatch.Decided}, body=Decision)
    def post(self, request: Request, approval_id: UUID) -> HttpResponse:
        given = DecideCall(approval_id=str(approval_id), **body_of(request, Decision).model_dump())
        return answer(dispatch.decide(self.caller_id, decisions_of([given]), scopes=self.caller_scopes))


class DecideManyView(Door):
    @operation("Decide about several calls at once", answers={200: dispatch.Decided}, body=Decisions)
    def post(self, request: Request) -> HttpResponse:
        given = body_of(request, Decisions)
        return answer(
            dispatch.decide(self.caller_id, decisions_of(given.decisions), scopes=self.caller_scopes)
        )
