"""A session's goal over REST: read, set, pause, resume, clear (A30.2, A30.4)."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import dispatch
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, body_of
from copilot.commands import SendMessage
from copilot.errors import InvalidRequest
from copilot.sessions import GOAL_CHARACTERS


class GoalBody(Body):
    """Exactly one of both: a new goal, or what becomes of the present one."""

    text: Annotated[Clean, Field(min_length=1, max_length=GOAL_CHARACTERS)] | None = None
    act: Literal["pause", "resume", "clear"] | None = None


class GoalView(Door):
    @operation("Read the session's goal", answers={200: dispatch.Goal})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return answer(dispatch.goal_of(self.caller_id, session_id))

    @operation("Set a goal, or pause, resume or clear it", answers={200: dispatch.Goal}, body=GoalBody)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, GoalBody)
        if (asked.text is None) == (asked.act is None):
            raise InvalidRequest("Send either text or act.")
        message = SendMessage(
            session_id=session_id,
            user_id=self.caller_id,
            text=asked.text or "",
            origin="api",
            permissions=self.turn_permissions,
        )
        if asked.act is not None:
            return answer(dispatch.change_goal(message, asked.act))
        return answer(dispatch.set_goal(message))
