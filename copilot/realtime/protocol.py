"""Parse the commands of a WebSocket and serialize the replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from config.core import json_values
from config.core.errors import InvalidRequest, RequestRefused
from config.core.json_values import JSON, StrictModel, validate_body
from copilot.chat import (
    admission_outcomes,
    approval_decisions,
    branches,
    goals,
    side_questions,
    slash_commands,
    stop,
)
from copilot.chat.commands import (
    MAX_DECISIONS,
    MAX_FEEDBACK_CHARACTERS,
    REQUEST_LIMITS,
    DecisionBody,
    EditBody,
    MessageBody,
    RetryBody,
    SwitchBody,
)

MAX_REF_CHARACTERS = 128  # the reply repeats the ref
REF_NUMBER_LIMIT = 2**63

CommandRef = (
    Annotated[str, Field(max_length=MAX_REF_CHARACTERS)]
    | Annotated[int, Field(ge=-REF_NUMBER_LIMIT, lt=REF_NUMBER_LIMIT)]
    | None
)


class _BaseCommand(StrictModel):
    ref: CommandRef = None


class SubscribeCommand(_BaseCommand):
    kind: Literal["session.subscribe"]
    session_id: str
    cursor: str | None = None


class UnsubscribeCommand(_BaseCommand):
    kind: Literal["session.unsubscribe"]
    session_id: str


class SubscribeSidebarCommand(_BaseCommand):
    kind: Literal["sidebar.subscribe"]


class SendMessageCommand(_BaseCommand, MessageBody):
    kind: Literal["message.send"]
    session_id: str


class StopTurnCommand(_BaseCommand):
    kind: Literal["turn.stop"]
    session_id: str
    queue: Literal["keep", "drop"] = "keep"


class EditQueuedCommand(_BaseCommand):
    kind: Literal["queue.edit"]
    session_id: str
    message_id: str
    text: str


class RemoveQueuedCommand(_BaseCommand):
    kind: Literal["queue.remove"]
    session_id: str
    message_id: str


class MoveQueuedCommand(_BaseCommand):
    kind: Literal["queue.move"]
    session_id: str
    message_id: str
    position: int = Field(ge=1, le=REQUEST_LIMITS.queued_messages)


class SendNowCommand(_BaseCommand):
    kind: Literal["queue.send_now"]
    session_id: str
    message_id: str


class EditMessageCommand(_BaseCommand, EditBody):
    kind: Literal["branch.edit"]
    session_id: str


class RetryMessageCommand(_BaseCommand, RetryBody):
    kind: Literal["branch.retry"]
    session_id: str


class SwitchBranchCommand(_BaseCommand, SwitchBody):
    kind: Literal["branch.switch"]
    session_id: str


class UndoTurnCommand(_BaseCommand):
    kind: Literal["turn.undo"]
    session_id: str


class AnswerQuestionCommand(_BaseCommand):
    kind: Literal["question.answer"]
    question_id: str
    text: str | None = None
    choice: str | None = None


class DecideApprovalsCommand(_BaseCommand):
    """One decision, or several at once: either all are applied or none."""

    kind: Literal["approval.decide"]
    approval_id: str | None = None
    decision: Literal["approve", "reject"] | None = None
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=MAX_FEEDBACK_CHARACTERS)
    decisions: list[DecisionBody] | None = Field(default=None, min_length=1, max_length=MAX_DECISIONS)

    def list_decisions(self) -> list[DecisionBody]:
        if (self.decisions is None) == (self.approval_id is None or self.decision is None):
            raise InvalidRequest("Send either approval_id and decision, or decisions.")
        if self.decisions is not None:
            return self.decisions
        return [
            DecisionBody(
                approval_id=self.approval_id or "",
                decision=self.decision or "reject",
                arguments=self.arguments,
                feedback=self.feedback,
            )
        ]


class SetGoalCommand(_BaseCommand):
    kind: Literal["goal.set"]
    session_id: str
    text: str


class ChangeGoalCommand(_BaseCommand):
    kind: Literal["goal.change"]
    session_id: str
    act: Literal["pause", "resume", "clear"]


class AskSideQuestionCommand(_BaseCommand):
    kind: Literal["side.ask"]
    session_id: str
    question: str


class StopSideQuestionCommand(_BaseCommand):
    kind: Literal["side.stop"]
    session_id: str


class PingCommand(_BaseCommand):
    kind: Literal["ping"]


SocketCommand = Annotated[
    SubscribeCommand
    | UnsubscribeCommand
    | SubscribeSidebarCommand
    | SendMessageCommand
    | StopTurnCommand
    | EditQueuedCommand
    | RemoveQueuedCommand
    | MoveQueuedCommand
    | SendNowCommand
    | EditMessageCommand
    | RetryMessageCommand
    | SwitchBranchCommand
    | UndoTurnCommand
    | AnswerQuestionCommand
    | DecideApprovalsCommand
    | SetGoalCommand
    | ChangeGoalCommand
    | AskSideQuestionCommand
    | StopSideQuestionCommand
    | PingCommand,
    Field(discriminator="kind"),
]


class CommandFrame(BaseModel):
    """A wrapper around the union, so that pydantic selects the class by `kind`."""

    command: SocketCommand


def parse_command(data: JSON) -> SocketCommand:
    if not isinstance(data, dict):
        raise InvalidRequest("A command must be a JSON object.")
    return validate_body(CommandFrame, {"command": data}).command


def get_command_ref(data: JSON) -> str | int | None:
    """Return the ref of a command that may be invalid otherwise; None when the ref is not one we repeat."""
    ref = data.get("ref") if isinstance(data, dict) else None
    if isinstance(ref, str):
        return ref if len(ref) <= MAX_REF_CHARACTERS else None
    return ref if isinstance(ref, int) and -REF_NUMBER_LIMIT <= ref < REF_NUMBER_LIMIT else None


# --- Replies -----------------------------------------------------------------------------------------

ReplyFields = dict[str, object]
CommandOutcome = (
    admission_outcomes.SubmissionStarted
    | admission_outcomes.SubmissionQueued
    | slash_commands.CommandResult
    | goals.GoalStatus
    | side_questions.SideQuestion
    | stop.StopResult
    | branches.BranchSwitchResult
    | branches.UndoResult
    | approval_decisions.DecisionResult
)


def decode_frame(frame: str | bytes) -> json_values.JSON:
    try:
        return msgspec.json.decode(frame)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
        raise InvalidRequest("The frame isn't valid JSON.") from problem


def encode_frame(reply: ReplyFields) -> str:
    return msgspec.json.encode(reply).decode()


def encode_error_frame(ref: object, refusal: RequestRefused) -> str:
    return encode_frame({"kind": "error", "ref": ref, **refusal.to_body()})


def serialize_outcome(outcome: CommandOutcome) -> ReplyFields:
    fields: ReplyFields = msgspec.to_builtins(outcome)
    for name in ("ignored_attachments", "hint"):  # left out when empty
        if not fields.get(name):
            fields.pop(name, None)
    return fields
