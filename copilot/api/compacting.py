"""A shorter conversation over REST (A17.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import dispatch
from copilot.api.doors import Door
from copilot.api.parsing import Body, body_of


class CompactSession(Body):
    focus: Annotated[str, Field(max_length=2_000)] = ""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """`nothing_to_compact`: the conversation is as short as it gets, and no turn was started."""

    state: Literal["started", "nothing_to_compact"]
    turn_id: str | None
    message: str
    cursor: str


class CompactView(Door):
    @operation(
        "Summarise the conversation; `focus` says what to keep above all",
        answers={202: Compaction, 200: Compaction},
        body=CompactSession,
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, CompactSession)
        begun = dispatch.compact(self.caller_id, session_id, focus=asked.focus, origin="api")
        turn_id = str(begun.turn_id) if begun.turn_id else None
        found = Compaction(state=begun.state, turn_id=turn_id, message=begun.message, cursor=begun.cursor)
        return answer(found, status=202 if begun.state == "started" else 200)
