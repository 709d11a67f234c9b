"""REST views for decisions on tool calls that need approval."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView
from copilot.chat import approval_decisions
from copilot.chat.commands import MAX_DECISIONS, MAX_FEEDBACK_CHARACTERS, DecisionBody, parse_decisions

FeedbackText = Annotated[str, Field(max_length=MAX_FEEDBACK_CHARACTERS)]


class Decision(RequestBody):
    """Changed `arguments` go with an approval, `feedback` with a rejection."""

    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: FeedbackText = ""


class Decisions(RequestBody):
    """All decisions count, or none. Calls that are not listed stay open."""

    decisions: Annotated[list[DecisionBody], Field(min_length=1, max_length=MAX_DECISIONS)]


class DecideView(AuthenticatedApiView):
    @document_operation(
        "Approve or reject a tool call; the first decision wins",
        answers={200: approval_decisions.DecisionResult},
        body=Decision,
    )
    def post(self, request: Request, approval_id: UUID) -> HttpResponse:
        decision = DecisionBody(approval_id=str(approval_id), **parse_body(request, Decision).model_dump())
        return respond_json(
            approval_decisions.decide_approvals(
                self.caller_id, parse_decisions([decision]), scopes=self.caller_scopes
            )
        )


class DecideManyView(AuthenticatedApiView):
    @document_operation(
        "Approve or reject several tool calls at once",
        answers={200: approval_decisions.DecisionResult},
        body=Decisions,
    )
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, Decisions)
        return respond_json(
            approval_decisions.decide_approvals(
                self.caller_id, parse_decisions(body.decisions), scopes=self.caller_scopes
            )
        )
