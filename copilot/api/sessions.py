"""Sessions over REST: list, make, read, change, delete and restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import InvalidRequest
from copilot.accounts import preferences
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.chat import approvals, compaction_requests, goals, sessions, stop
from copilot.chat import selectors as chat_selectors
from copilot.chat.approvals import get_auto_approve
from copilot.chat.commands import REQUEST_LIMITS, SendMessage
from copilot.chat.goals import MAX_GOAL_CHARACTERS
from copilot.models import Session
from copilot.realtime import event_log
from copilot.realtime.payloads import AutoApprovePayload, SessionState

SessionTitle = Annotated[CleanText, Field(max_length=200)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
MAX_CAP_MICRODOLLARS = 10**12  # a million dollars, and what the column holds
MAX_ALLOWED_TOOLS = 500  # names on a list of what is allowed


class NewSession(RequestBody):
    title: SessionTitle = ""


class AutoApprove(RequestBody):
    """Calls that run unasked; without a cap only those that cost nothing (A11.11). Sub-sessions only when said so."""

    enabled: bool
    cap_microdollars: Annotated[int, Field(ge=0, le=MAX_CAP_MICRODOLLARS)] | None = None
    sub_sessions: bool = False


class SessionChanges(RequestBody):
    """Absent fields stay as they are."""

    title: SessionTitle | None = None
    pinned: bool | None = None
    archived: bool | None = None
    personality: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    instructions: Annotated[CleanText, Field(max_length=preferences.MAX_INSTRUCTIONS_CHARACTERS)] = ""
    allowed_tools: Annotated[list[ToolName], Field(max_length=MAX_ALLOWED_TOOLS)] | None = None
    auto_approve: AutoApprove | None = None

    def to_session_settings(self) -> sessions.SessionSettings:
        given: sessions.SessionSettings = {}
        if "personality" in self.model_fields_set:
            given["personality_id"] = self.personality
        if "instructions" in self.model_fields_set:
            given["instructions"] = self.instructions
        if "allowed_tools" in self.model_fields_set:
            given["allowed_tools"] = self.allowed_tools
        return given


class SessionsQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=500)] | None = None
    q: Annotated[CleanText, Field(max_length=200)] = ""
    archived: bool = False
    parent: Annotated[UUID, Field(description="Its sub-sessions; without it, none are listed.")] | None = None
    limit: Annotated[int, Field(ge=1, le=REQUEST_LIMITS.sessions_per_page)] = REQUEST_LIMITS.sessions_per_page


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
    auto_approve: AutoApprovePayload


@dataclass(frozen=True, kw_only=True)
class SessionsPage:
    items: list[chat_selectors.SessionPayload]
    next_cursor: str | None


def serialize_session(session: Session) -> OpenSession:
    view = chat_selectors.serialize_session(session)
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
        cursor=event_log.get_last_cursor(view.id),
        personality=session.personality_id,
        instructions=session.instructions,
        allowed_tools=session.allowed_tools,
        auto_approve=get_auto_approve(session),
    )


class SessionsView(AuthenticatedApiView):
    @document_operation("List sessions", answers={200: SessionsPage}, query=SessionsQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = parse_query(request, SessionsQuery)
        page = chat_selectors.list_sessions_page(
            self.caller_id,
            cursor=asked.cursor,
            q=asked.q,
            archived=asked.archived,
            parent_id=asked.parent,
            limit=asked.limit,
        )
        return respond_json(SessionsPage(items=list(page.items), next_cursor=page.next_cursor))

    @document_operation("Make a session", answers={201: OpenSession}, body=NewSession)
    def post(self, request: Request) -> HttpResponse:
        asked = parse_body(request, NewSession)
        return respond_json(
            serialize_session(sessions.create_session(self.caller_id, title=asked.title)), 201
        )


class SessionView(AuthenticatedApiView):
    @document_operation("Read a session", answers={200: OpenSession})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return respond_json(serialize_session(chat_selectors.get_session(self.caller_id, session_id)))

    @document_operation(
        "Rename, pin, archive or shape a session", answers={200: OpenSession}, body=SessionChanges
    )
    def patch(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = parse_body(request, SessionChanges)
        sessions.update_session_settings(self.caller_id, session_id, asked.to_session_settings())
        if asked.auto_approve is not None:
            approvals.set_auto_approve(self.caller_id, session_id, **asked.auto_approve.model_dump())
        changed = sessions.update_session(
            self.caller_id,
            session_id,
            title=asked.title,
            pinned=asked.pinned,
            archived=asked.archived,
            allowed=asked.auto_approve is not None,
        )
        return respond_json(serialize_session(changed))

    @document_operation("Delete a session (can be undone)", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        stop.delete_session_and_stop(self.caller_id, session_id)
        return respond_no_content()


class SessionRestoreView(AuthenticatedApiView):
    @document_operation("Restore a deleted session", answers={200: OpenSession})
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        return respond_json(serialize_session(sessions.restore_session(self.caller_id, session_id)))


# MERGED api.compacting: A shorter conversation over REST (A17.6).


class CompactSession(RequestBody):
    focus: Annotated[str, Field(max_length=2_000)] = ""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """`nothing_to_compact`: the conversation is as short as it gets, and no turn was started."""

    state: Literal["started", "nothing_to_compact"]
    turn_id: str | None
    message: str
    cursor: str


class CompactView(AuthenticatedApiView):
    @document_operation(
        "Summarise the conversation; `focus` says what to keep above all",
        answers={202: Compaction, 200: Compaction},
        body=CompactSession,
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = parse_body(request, CompactSession)
        begun = compaction_requests.request_compaction(
            self.caller_id, session_id, focus=asked.focus, origin="api"
        )
        turn_id = str(begun.turn_id) if begun.turn_id else None
        found = Compaction(state=begun.state, turn_id=turn_id, message=begun.message, cursor=begun.cursor)
        return respond_json(found, status=202 if begun.state == "started" else 200)


# MERGED api.goals: A session's goal over REST: read, set, pause, resume, clear (A30.2, A30.4).


class GoalBody(RequestBody):
    """Exactly one of both: a new goal, or what becomes of the present one."""

    text: Annotated[CleanText, Field(min_length=1, max_length=MAX_GOAL_CHARACTERS)] | None = None
    act: Literal["pause", "resume", "clear"] | None = None


class GoalView(AuthenticatedApiView):
    @document_operation("Read the session's goal", answers={200: goals.GoalStatus})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return respond_json(goals.get_goal_status(self.caller_id, session_id))

    @document_operation(
        "Set a goal, or pause, resume or clear it", answers={200: goals.GoalStatus}, body=GoalBody
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = parse_body(request, GoalBody)
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
            return respond_json(goals.change_goal_state(message, asked.act))
        return respond_json(goals.set_goal_and_start(message))
