"""Answers over REST to what the agent asked (A12.2)."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from billing.rest import nothing, operation
from copilot import dispatch
from copilot.api.doors import Door
from copilot.api.parsing import Body, body_of
from copilot.errors import InvalidRequest


class Answer(Body):
    """Exactly one of both."""

    text: str | None = None
    choice: str | None = None


class AnswerView(Door):
    @operation("Answer a question; the first answer wins", answers={204: None}, body=Answer)
    def post(self, request: Request, question_id: UUID) -> HttpResponse:
        given = body_of(request, Answer)
        if (given.text is None) == (given.choice is None):
            raise InvalidRequest("Send either text or choice.")
        dispatch.answer_question(self.caller_id, question_id, text=given.text, choice=given.choice)
        return nothing()
