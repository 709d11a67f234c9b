"""Sessions over REST: list, make, read, change, delete and restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import approvals, dispatch, preferences, queries, sessions
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, Query, body_of, query_of
from copilot.awaited import auto_approve_of
from copilot.commands import LIMITS
from copilot.events import AutoApproveView, SessionState
from copilot.live import stream
from copilot.models import Session

Title = Annotated[Clean, Field(max_length=200)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
GREATEST_CAP = 10**12  # a million dollars, and what the column holds
MAX_TOOLS = 500  # names on a list of what is allowed


class NewSession(Body):
    title: Title = ""


class AutoApprove(Body):
    """Calls that run unasked; without a cap only those that cost nothing (A11.11). Sub-sessions only when said so."""

    enabled: bool
    cap_microdollars: Annotated[int, Field(ge=0, le=GREATEST_CAP)] | None = None
    sub_sessions: bool = False


class SessionChanges(Body):
    """Absent fields stay as they are."""

    title: Title | None = None
    pinned: bool | None = None
    archived: bool | None = None
    personality: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    instructions: Annotated[Clean, Field(max_length=preferences.MAX_INSTRUCTIONS)] = ""
    allowed_tools: Annotated[list[ToolName], Field(max_length=MAX_TOOLS)] | None = None
    auto_approve: AutoApprove | None = None

    def shape(self) -> sessions.Shape:
        given: sessions.Shape = {}
        if "personality" in self.model_fields_set:
            given["personality_id"] = self.personality
        if "instructions" in self.model_fields_set:
            given["instructions"] = self.instructions
        if "allowed_tools" in self.model_fields_set:
            given["allowed_tools"] = self.allowed_tools
        return given


class SessionsQuery(Query):
    cursor: Annotated[str, Field(max_length=500)] | None = None
    q: Annotated[Clean, Field(max_length=200)] = ""
    archived: bool = False
    parent: Annotated[UUID, Field(description="Its sub-sessions; without it, none are listed.")] | None = None
    limit: Annotated[int, Field(ge=1, le=LIMITS.sessions_per_page)] = LIMITS.sessions_per_page


@dataclass(frozen=True, kw_only=True)
class OpenSession:
    """A session and the place in its log from which to follow it."""

    id: str
    title: str
    state: SessionState
    pinned: bool
    archived: bool
    created_at: str
    active_at: str
    parent_id: str | None
    platform: str
    cursor: str
    personality: int | None
    instructions: str
    allowed_tools: list[str] | None
    auto_approve: AutoApproveView


@dataclass(frozen=True, kw_only=True)
class SessionsPage:
    items: list[queries.SessionView]
    next_cursor: str | None


def opened(session: Session) -> OpenSession:
    view = queries.session_view(session)
    return OpenSession(
        id=view.id,
        title=view.title,
        state=view.state,
        pinned=view.pinned,
        archived=view.archived,
        created_at=view.created_at,
        active_at=view.active_at,
        parent_id=view.parent_id,
        platform=view.platform,
        cursor=stream.last_cursor(view.id),
        personality=session.personality_id,
        instructions=session.instructions,
        allowed_tools=session.allowed_tools,
        auto_approve=auto_approve_of(session),
    )


class SessionsView(Door):
    @operation("List sessions", answers={200: SessionsPage}, query=SessionsQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, SessionsQuery)
        page = queries.sessions_page(
            self.caller_id,
            cursor=asked.cursor,
            q=asked.q,
            archived=asked.archived,
            parent_id=asked.parent,
            limit=asked.limit,
        )
        return answer(SessionsPage(items=list(page.items), next_cursor=page.next_cursor))

    @operation("Make a session", answers={201: OpenSession}, body=NewSession)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, NewSession)
        return answer(opened(sessions.create(self.caller_id, title=asked.title)), 201)


class SessionView(Door):
    @operation("Read a session", answers={200: OpenSession})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return answer(opened(queries.session_of(self.caller_id, session_id)))

    @operation("Rename, pin, archive or shape a session", answers={200: OpenSession}, body=SessionChanges)
    def patch(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, SessionChanges)
        sessions.shape(self.caller_id, session_id, asked.shape())
        if asked.auto_approve is not None:
            approvals.allow_unasked(self.caller_id, session_id, **asked.auto_approve.model_dump())
        changed = sessions.update(
            self.caller_id,
            session_id,
            title=asked.title,
            pinned=asked.pinned,
            archived=asked.archived,
            allowed=asked.auto_approve is not None,
        )
        return answer(opened(changed))

    @operation("Delete a session (can be undone)", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        dispatch.remove_session(self.caller_id, session_id)
        return nothing()


class SessionRestoreView(Door):
    @operation("Restore a deleted session", answers={200: OpenSession})
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        return answer(opened(sessions.restore(self.caller_id, session_id)))
