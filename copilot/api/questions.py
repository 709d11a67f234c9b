"""REST view for answers to the agent's questions."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_no_content
from config.core.errors import InvalidRequest
from copilot.api.base import AuthenticatedApiView
from copilot.chat import questions


class Answer(RequestBody):
    """Send exactly one of the two."""

    text: str | None = None
    choice: str | None = None


class AnswerView(AuthenticatedApiView):
    @document_operation("Answer a question; the first answer wins", answers={204: None}, body=Answer)
    def post(self, request: Request, question_id: UUID) -> HttpResponse:
        body = parse_body(request, Answer)
        if (body.text is None) == (body.choice is None):
            raise InvalidRequest("Send either text or choice.")
        questions.record_answer(self.caller_id, question_id, text=body.text, choice=body.choice)
        return respond_no_content()
