"""The socket's commands (E2)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from copilot.commands.decisions import DECISIONS, FEEDBACK_CHARACTERS, DecideCall
from copilot.commands.messages import LIMITS, EditBody, MessageBody, RetryBody, SwitchBody
from copilot.commands.parsing import Strict, parse
from copilot.errors import InvalidRequest
from copilot.events import JSON

REF_CHARACTERS = 128  # it is repeated in the answer
REF_NUMBER = 2**63

Ref = (
    Annotated[str, Field(max_length=REF_CHARACTERS)]
    | Annotated[int, Field(ge=-REF_NUMBER, lt=REF_NUMBER)]
    | None
)


class _Command(Strict):
    ref: Ref = None


class Subscribe(_Command):
    kind: Literal["session.subscribe"]
    session_id: str
    cursor: str | None = None


class Unsubscribe(_Command):
    kind: Literal["session.unsubscribe"]
    session_id: str


class SubscribeSidebar(_Command):
    kind: Literal["sidebar.subscribe"]


class Send(_Command, MessageBody):
    kind: Literal["message.send"]
    session_id: str


class Stop(_Command):
    kind: Literal["turn.stop"]
    session_id: str
    queue: Literal["keep", "drop"] = "keep"


class EditQueued(_Command):
    kind: Literal["queue.edit"]
    session_id: str
    message_id: str
    text: str


class RemoveQueued(_Command):
    kind: Literal["queue.remove"]
    session_id: str
    message_id: str


class MoveQueued(_Command):
    kind: Literal["queue.move"]
    session_id: str
    message_id: str
    position: int = Field(ge=1, le=LIMITS.queued_messages)


class SendNow(_Command):
    kind: Literal["queue.send_now"]
    session_id: str
    message_id: str


class EditSent(_Command, EditBody):
    kind: Literal["branch.edit"]
    session_id: str


class RetrySent(_Command, RetryBody):
    kind: Literal["branch.retry"]
    session_id: str


class SwitchBranch(_Command, SwitchBody):
    kind: Literal["branch.switch"]
    session_id: str


class UndoTurn(_Command):
    kind: Literal["turn.undo"]
    session_id: str


class AnswerQuestion(_Command):
    kind: Literal["question.answer"]
    question_id: str
    text: str | None = None
    choice: str | None = None


class DecideApprovals(_Command):
    """One by one, or several at once: all of them count, or none."""

    kind: Literal["approval.decide"]
    approval_id: str | None = None
    decision: Literal["approve", "reject"] | None = None
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=FEEDBACK_CHARACTERS)
    decisions: list[DecideCall] | None = Field(default=None, min_length=1, max_length=DECISIONS)

    def given(self) -> list[DecideCall]:
        if (self.decisions is None) == (self.approval_id is None or self.decision is None):
            raise InvalidRequest("Send either approval_id and decision, or decisions.")
        if self.decisions is not None:
            return self.decisions
        return [
            DecideCall(
                approval_id=self.approval_id or "",
                decision=self.decision or "reject",
                arguments=self.arguments,
                feedback=self.feedback,
            )
        ]


class SetGoal(_Command):
    kind: Literal["goal.set"]
    session_id: str
    text: str


class ChangeGoal(_Command):
    kind: Literal["goal.change"]
    session_id: str
    act: Literal["pause", "resume", "clear"]


class AskAside(_Command):
    kind: Literal["side.ask"]
    session_id: str
    question: str


class StopAside(_Command):
    kind: Literal["side.stop"]
    session_id: str


class Ping(_Command):
    kind: Literal["ping"]


Command = Annotated[
    Subscribe
    | Unsubscribe
    | SubscribeSidebar
    | Send
    | Stop
    | EditQueued
    | RemoveQueued
    | MoveQueued
    | SendNow
    | EditSent
    | RetrySent
    | SwitchBranch
    | UndoTurn
    | AnswerQuestion
    | DecideApprovals
    | SetGoal
    | ChangeGoal
    | AskAside
    | StopAside
    | Ping,
    Field(discriminator="kind"),
]


class Frame(BaseModel):
    """Wraps the union so that pydantic picks by `kind`."""

    command: Command


def parse_command(data: JSON) -> Command:
    if not isinstance(data, dict):
        raise InvalidRequest("A command is a JSON object.")
    return parse(Frame, {"command": data}).command


def ref_of(data: JSON) -> str | int | None:
    """Return the name under which a client wants its answer, if it is one that may be repeated to it."""
    ref = data.get("ref") if isinstance(data, dict) else None
    if isinstance(ref, str):
        return ref if len(ref) <= REF_CHARACTERS else None
    return ref if isinstance(ref, int) and -REF_NUMBER <= ref < REF_NUMBER else None
