"""REST views for sessions: manage, search, branch, undo, goals and compaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, assert_never
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field, RootModel
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.schema import IDEMPOTENCY_KEY_HEADER
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import parse_uuid, validate_body
from copilot.accounts import preferences
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.api.messages import Started, parse_fields_with_run_id, serialize_started
from copilot.chat import approvals, branches, compaction_requests, goals, search, sessions, stop
from copilot.chat import selectors as chat_selectors
from copilot.chat.approvals import get_auto_approve
from copilot.chat.commands import REQUEST_LIMITS, EditBody, RetryBody, SendMessage, SwitchBody, parse_resend
from copilot.chat.goals import MAX_GOAL_CHARACTERS
from copilot.models import Session
from copilot.realtime import event_log
from copilot.realtime.payloads import AutoApprovePayload, SessionState

SessionTitle = Annotated[CleanText, Field(max_length=200)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
MAX_CAP_MICRODOLLARS = 10**12  # a million dollars; the column holds no more
MAX_ALLOWED_TOOLS = 500


class NewSession(RequestBody):
    title: SessionTitle = ""


class AutoApprove(RequestBody):
    """Run calls without asking, up to `cap_microdollars` in total.

    Without a cap only free calls run. Sub-sessions are included only with `sub_sessions`.
    """

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
        settings: sessions.SessionSettings = {}
        if "personality" in self.model_fields_set:
            settings["personality_id"] = self.personality
        if "instructions" in self.model_fields_set:
            settings["instructions"] = self.instructions
        if "allowed_tools" in self.model_fields_set:
            settings["allowed_tools"] = self.allowed_tools
        return settings


class SessionsQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=500)] | None = None
    q: Annotated[CleanText, Field(max_length=200)] = ""
    archived: bool = False
    parent: Annotated[UUID, Field(description="List the sub-sessions of this session.")] | None = None
    limit: Annotated[int, Field(ge=1, le=REQUEST_LIMITS.sessions_per_page)] = REQUEST_LIMITS.sessions_per_page


@dataclass(frozen=True, kw_only=True)
class OpenSession:
    """A session, with the cursor from which to follow its events."""

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
    @document_operation(
        "List your sessions, most recently active first", answers={200: SessionsPage}, query=SessionsQuery
    )
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SessionsQuery)
        page = chat_selectors.list_sessions_page(
            self.caller_id,
            cursor=query.cursor,
            q=query.q,
            archived=query.archived,
            parent_id=query.parent,
            limit=query.limit,
        )
        return respond_json(SessionsPage(items=list(page.items), next_cursor=page.next_cursor))

    @document_operation("Create a session", answers={201: OpenSession}, body=NewSession)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, NewSession)
        return respond_json(serialize_session(sessions.create_session(self.caller_id, title=body.title)), 201)


class SessionView(AuthenticatedApiView):
    @document_operation("Read a session", answers={200: OpenSession})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return respond_json(serialize_session(chat_selectors.get_session(self.caller_id, session_id)))

    @document_operation(
        "Rename, pin or archive a session, or change its settings",
        answers={200: OpenSession},
        body=SessionChanges,
    )
    def patch(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, SessionChanges)
        sessions.update_session_settings(self.caller_id, session_id, body.to_session_settings())
        if body.auto_approve is not None:
            approvals.set_auto_approve(self.caller_id, session_id, **body.auto_approve.model_dump())
        changed = sessions.update_session(
            self.caller_id,
            session_id,
            title=body.title,
            pinned=body.pinned,
            archived=body.archived,
            allowed=body.auto_approve is not None,
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


class CompactSession(RequestBody):
    focus: Annotated[str, Field(max_length=2_000)] = ""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The state `nothing_to_compact` means that no turn was started: the conversation cannot be shortened."""

    state: Literal["started", "nothing_to_compact"]
    turn_id: str | None
    message: str
    cursor: str


class CompactView(AuthenticatedApiView):
    @document_operation(
        "Compact the conversation; `focus` names what the summary must keep",
        answers={202: Compaction, 200: Compaction},
        body=CompactSession,
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, CompactSession)
        compaction = compaction_requests.request_compaction(
            self.caller_id, session_id, focus=body.focus, origin="api"
        )
        turn_id = str(compaction.turn_id) if compaction.turn_id else None
        answer = Compaction(
            state=compaction.state, turn_id=turn_id, message=compaction.message, cursor=compaction.cursor
        )
        return respond_json(answer, status=202 if compaction.state == "started" else 200)


class GoalBody(RequestBody):
    """Send exactly one of the two: the text of a new goal, or an action on the current one."""

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
        body = parse_body(request, GoalBody)
        if (body.text is None) == (body.act is None):
            raise InvalidRequest("Send either text or act.")
        message = SendMessage(
            session_id=session_id,
            user_id=self.caller_id,
            text=body.text or "",
            origin="api",
            permissions=self.turn_permissions,
        )
        if body.act is not None:
            return respond_json(goals.change_goal_state(message, body.act))
        return respond_json(goals.set_goal_and_start(message))


class Edit(EditBody):
    act: Literal["edit"]


class Retry(RetryBody):
    act: Literal["retry"]


class Switch(SwitchBody):
    act: Literal["switch"]


class BranchAct(RootModel[Annotated[Edit | Retry | Switch, Field(discriminator="act")]]):
    """Edit and resend your message, retry an answer, or switch to another version of a message."""


@dataclass(frozen=True, kw_only=True)
class ShownBranch:
    """The version that is shown and continued now, counted from 0."""

    message_id: str
    branch: int
    versions: int
    cursor: str


@dataclass(frozen=True, kw_only=True)
class UndoneTurn:
    """`text` is the message of the undone turn; `message` says what undo cannot take back."""

    turn_id: str | None
    text: str
    message: str
    cursor: str


class BranchesView(AuthenticatedApiView):
    @document_operation(
        "Edit and resend a message, retry an answer, or switch to another version",
        answers={200: ShownBranch, 201: Started},
        body=BranchAct,
        parameters=[IDEMPOTENCY_KEY_HEADER],
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        body = validate_body(BranchAct, parse_fields_with_run_id(request)).root
        match body:
            case Switch():
                return respond_json(self._switch_branch(session_id, body))
            case Edit() | Retry():
                resend = parse_resend(
                    body,
                    session_id=session_id,
                    user_id=self.caller_id,
                    origin="api",
                    permissions=self.turn_permissions,
                )
                return respond_json(serialize_started(branches.resend_message(resend)), 201)
            case unreachable:
                assert_never(unreachable)

    def _switch_branch(self, session_id: UUID, body: Switch) -> ShownBranch:
        message_id = parse_uuid(body.message_id)
        if message_id is None:
            raise NotFound
        shown = branches.switch_branch(self.caller_id, session_id, message_id, body.branch)
        return ShownBranch(
            message_id=str(shown.message_id),
            branch=shown.branch,
            versions=shown.versions,
            cursor=shown.cursor,
        )


class UndoView(AuthenticatedApiView):
    @document_operation(
        "Undo the last turn; what its tools did elsewhere is not undone", answers={200: UndoneTurn}
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        undone = branches.undo_last_turn(self.caller_id, session_id)
        turn_id = str(undone.turn_id) if undone.turn_id else None
        return respond_json(
            UndoneTurn(turn_id=turn_id, text=undone.text, message=undone.message, cursor=undone.cursor)
        )


MAX_TITLE_HITS = 8


class SearchQuery(QueryParams):
    q: Annotated[CleanText, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = search.MAX_HITS


@dataclass(frozen=True, kw_only=True)
class Found:
    sessions: list[chat_selectors.SessionPayload]  # sessions whose title contains the text
    messages: list[search.SearchHit]  # messages with every word, or with words that begin so


class SearchView(AuthenticatedApiView):
    @document_operation("Search your chats and messages", answers={200: Found}, query=SearchQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SearchQuery)
        titled = chat_selectors.list_sessions_page(self.caller_id, q=query.q, limit=MAX_TITLE_HITS).items
        return respond_json(
            Found(
                sessions=titled, messages=search.search_messages(self.caller_id, query.q, limit=query.limit)
            )
        )
