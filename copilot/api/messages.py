"""REST views for messages: send, list, stop, the queue of a busy session, and side questions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal, assert_never
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_json_object, parse_query
from config.core.api.schema import IDEMPOTENCY_KEY_HEADER
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import InvalidRequest
from config.core.json_values import JSON
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.chat import admission_outcomes, queue_commands, side_questions, slash_commands, stop
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import REQUEST_LIMITS, MessageBody, SendMessage, parse_message
from copilot.chat.permissions import Permissions
from copilot.chat.side_questions import MAX_SIDE_QUESTION_CHARACTERS
from copilot.realtime.payloads import MessagePayload, QueueItem

MESSAGES_PER_PAGE = 50
MAX_SEQUENCE = 2**63 - 1  # the column holds no more


class MessagesQuery(QueryParams):
    before: Annotated[int, Field(ge=1, le=MAX_SEQUENCE)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = MESSAGES_PER_PAGE


class StopBody(RequestBody):
    queue: Literal["keep", "drop"] = "keep"


@dataclass(frozen=True, kw_only=True)
class MessagesPage:
    """Messages, oldest first; pass `before` to get the page before them."""

    items: list[MessagePayload]
    has_older: bool
    before: int | None


@dataclass(frozen=True, kw_only=True)
class Started:
    """A new turn started with the message, or the running turn has already taken it (`delivered`)."""

    state: Literal["started", "delivered"]
    message_id: str
    turn_id: str
    run_id: str | None
    cursor: str
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Queued:
    """The message waits behind the turn `turn_id`."""

    state: Literal["queued"] = "queued"
    message_id: str
    turn_id: str
    run_id: str | None
    position: int
    capacity: int
    cursor: str
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Obeyed:
    """The text was a slash command, such as `/undo`, and has been run."""

    state: Literal["obeyed"] = "obeyed"
    command: str
    message: str
    session_id: str
    turn_id: str | None
    text: str
    side_id: str | None


@dataclass(frozen=True, kw_only=True)
class StopAnswer:
    turn_id: str | None
    state: Literal["stopping", "idle"]


class MessagesView(AuthenticatedApiView):
    @document_operation(
        "Read the transcript, newest page first", answers={200: MessagesPage}, query=MessagesQuery
    )
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        query = parse_query(request, MessagesQuery)
        session = chat_selectors.get_session(self.caller_id, session_id)
        items, has_older = chat_selectors.list_messages_page(
            session.id, before=query.before, limit=query.limit
        )
        before = items[0].sequence if has_older and items else None
        return respond_json(MessagesPage(items=items, has_older=has_older, before=before))

    @document_operation(
        "Send a message: it starts a turn, waits behind the running one, or is run as a slash command",
        answers={200: Obeyed, 201: Started, 202: Queued},
        body=MessageBody,
        parameters=[IDEMPOTENCY_KEY_HEADER],
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        outcome = slash_commands.submit_input(
            parse_send_command(request, session_id, self.caller_id, self.turn_permissions)
        )
        match outcome:
            case admission_outcomes.SubmissionStarted():
                return respond_json(serialize_started(outcome), 201)
            case admission_outcomes.SubmissionQueued():
                return respond_json(_omit_empty_fields(_serialize_queued(outcome)), 202)
            case slash_commands.CommandResult():
                return respond_json(_serialize_command_result(outcome))
            case unreachable:
                assert_never(unreachable)


class StopView(AuthenticatedApiView):
    @document_operation("Stop the running turn", answers={200: StopAnswer}, body=StopBody)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        stopped = stop.stop_session(self.caller_id, session_id, queue=parse_body(request, StopBody).queue)
        turn_id = str(stopped.turn_id) if stopped.turn_id else None
        return respond_json(StopAnswer(turn_id=turn_id, state=stopped.state))


def parse_send_command(
    request: Request, session_id: UUID, user_id: int, permissions: Permissions
) -> SendMessage:
    """Read a message from a REST request, with `api` as its origin."""
    fields = parse_fields_with_run_id(request)
    return parse_message(
        fields, session_id=session_id, user_id=user_id, origin="api", permissions=permissions
    )


def parse_fields_with_run_id(request: Request) -> dict[str, JSON]:
    """Return the body's fields, with the Idempotency-Key header as their `run_id`."""
    fields = parse_json_object(request)
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        if fields.get("run_id") not in (None, key):
            raise InvalidRequest(
                "Idempotency-Key and run_id are different. Send one of them, or the same value in both."
            )
        fields["run_id"] = key
    return fields


def serialize_started(outcome: admission_outcomes.SubmissionStarted) -> dict[str, object]:
    return _omit_empty_fields(
        Started(
            message_id=str(outcome.message_id),
            turn_id=str(outcome.turn_id),
            run_id=outcome.run_id,
            cursor=outcome.cursor,
            state=outcome.state,
            ignored_attachments=list(outcome.ignored_attachments),
            hint=outcome.hint,
        )
    )


def _serialize_queued(outcome: admission_outcomes.SubmissionQueued) -> Queued:
    return Queued(
        message_id=str(outcome.message_id),
        turn_id=str(outcome.turn_id),
        run_id=outcome.run_id,
        position=outcome.position,
        capacity=outcome.capacity,
        cursor=outcome.cursor,
        ignored_attachments=list(outcome.ignored_attachments),
        hint=outcome.hint,
    )


def _serialize_command_result(outcome: slash_commands.CommandResult) -> Obeyed:
    return Obeyed(
        command=outcome.command,
        message=outcome.message,
        session_id=str(outcome.session_id),
        turn_id=str(outcome.turn_id) if outcome.turn_id else None,
        text=outcome.text,
        side_id=outcome.side_id,
    )


def _omit_empty_fields(outcome: Started | Queued) -> dict[str, object]:
    fields = asdict(outcome)
    for name in ("ignored_attachments", "hint"):
        if not fields[name]:
            del fields[name]
    return fields


class QueuedText(RequestBody):
    text: str


class QueuedPlace(RequestBody):
    position: Annotated[int, Field(ge=1, le=REQUEST_LIMITS.queued_messages)]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Queued messages, in the order in which they will be sent."""

    items: list[QueueItem]
    capacity: int


def render_queue(session_id: UUID) -> HttpResponse:
    return respond_json(
        Queue(items=chat_selectors.get_queue_items(session_id), capacity=REQUEST_LIMITS.queued_messages)
    )


class QueueView(AuthenticatedApiView):
    @document_operation("List the queued messages", answers={200: Queue})
    def get(self, request: Request, session_id: UUID) -> HttpResponse:
        return render_queue(chat_selectors.get_session(self.caller_id, session_id).id)


class QueuedView(AuthenticatedApiView):
    @document_operation("Edit a queued message", answers={200: Queue}, body=QueuedText)
    def patch(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.edit_queued_message(
            self.caller_id,
            session_id,
            message_id,
            parse_body(request, QueuedText).text,
            permissions=self.turn_permissions,
        )
        return render_queue(session_id)

    @document_operation("Withdraw a queued message", answers={200: Queue})
    def delete(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.remove_queued_message(self.caller_id, session_id, message_id)
        return render_queue(session_id)


class MoveView(AuthenticatedApiView):
    @document_operation("Move a queued message", answers={200: Queue}, body=QueuedPlace)
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        position = parse_body(request, QueuedPlace).position
        queue_commands.move_queued_message(self.caller_id, session_id, message_id, position)
        return render_queue(session_id)


class SendNowView(AuthenticatedApiView):
    @document_operation("Stop the running turn and send a queued message now", answers={200: Queue})
    def post(self, request: Request, session_id: UUID, message_id: UUID) -> HttpResponse:
        queue_commands.send_queued_message_now(self.caller_id, session_id, message_id)
        return render_queue(session_id)


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
