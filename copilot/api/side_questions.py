"""REST views for side questions: ask, read, stop."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.chat import side_questions
from copilot.chat.side_questions import MAX_SIDE_QUESTION_CHARACTERS


class SideBody(RequestBody):
    question: Annotated[CleanText, Field(min_length=1, max_length=MAX_SIDE_QUESTION_CHARACTERS)]


class SideView(AuthenticatedApiView):
    @document_operation("Ask a side question", answers={201: side_questions.SideQuestion}, body=SideBody)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, SideBody)
        return respond_json(side_questions.ask_side_question(self.caller_id, session_id, body.question), 201)

    @document_operation("Stop the side question, if one is being answered", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        side_questions.stop_side_question(self.caller_id, session_id)
        return respond_no_content()


class SideAnswerView(AuthenticatedApiView):
    @document_operation(
        "Read a side question and its answer", answers={200: side_questions.SideQuestionPayload}
    )
    def get(self, request: Request, session_id: UUID, side_id: UUID) -> HttpResponse:
        return respond_json(side_questions.get_side_question(self.caller_id, session_id, side_id))
