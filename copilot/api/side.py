"""Questions aside over REST: ask, look, stop (A30.2, A30.3)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import dispatch
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, body_of
from copilot.dispatch.asides import QUESTION_CHARACTERS


class SideBody(Body):
    question: Annotated[Clean, Field(min_length=1, max_length=QUESTION_CHARACTERS)]


class SideView(Door):
    @operation("Ask something aside", answers={201: dispatch.Aside}, body=SideBody)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, SideBody)
        return answer(dispatch.ask_aside(self.caller_id, session_id, asked.question), 201)

    @operation("Stop the question aside, if one is being answered", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        dispatch.stop_aside(self.caller_id, session_id)
        return nothing()


class SideAnswerView(Door):
    @operation("Look at a question aside", answers={200: dispatch.AsideSeen})
    def get(self, request: Request, session_id: UUID, side_id: UUID) -> HttpResponse:
        return answer(dispatch.aside_of(self.caller_id, session_id, side_id))
