"""REST views for versions of a message (edit, retry, switch) and for undo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, assert_never
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field, RootModel
from rest_framework.request import Request

from config.core.api.schema import IDEMPOTENCY_KEY_HEADER
from config.core.api.views import document_operation, respond_json
from config.core.errors import NotFound
from config.core.json_values import parse_uuid, validate_body
from copilot.api.base import AuthenticatedApiView
from copilot.api.messages import Started, parse_fields_with_run_id, serialize_started
from copilot.chat import branches
from copilot.chat.commands import EditBody, RetryBody, SwitchBody, parse_resend


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
