"""What people and programs may ask for, parsed and checked once, the same for every door (T11, E2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from copilot.errors import InvalidRequest, NotFound
from copilot.events import JSON
from copilot.permissions import Permissions
from copilot.ports import Parent
from copilot.tags import strip_server_tags


@dataclass(frozen=True)
class Limits:
    """T11, in one place."""

    message_characters: int = 64_000
    attachments: int = 20
    context_url_characters: int = 2_000
    context_text_characters: int = 32_000
    queued_messages: int = 10
    queue_calls: int = 30
    queue_calls_seconds: int = 60
    sessions_per_page: int = 50
    frame_bytes: int = 256 * 1024
    commands: int = 60
    commands_seconds: int = 10


LIMITS = Limits()
GREATEST_BRANCH = 2**31 - 1  # what the column holds
FEEDBACK_CHARACTERS = 2_000
DECISIONS = 100  # in one batch; a reply makes 16 calls at most
RUN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class PageContext:
    url: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SendMessage:
    """Say something to the agent; the only way to do so (T3)."""

    session_id: UUID
    user_id: int
    text: str
    attachments: tuple[str, ...] = ()
    page_context: PageContext | None = None
    tier: str = ""
    mode: str = ""
    run_id: str | None = None
    origin: str
    permissions: Permissions
    author: str = ""
    parent: Parent | None = None  # another turn says it (A21)


@dataclass(frozen=True, kw_only=True)
class Resend:
    """Say something again, changed or not: the message of `message_id`, or the one that row answers (A30.6)."""

    session_id: UUID
    user_id: int
    message_id: UUID
    text: str | None = None  # None: unchanged
    tier: str = ""
    mode: str = ""
    run_id: str | None = None
    origin: str
    permissions: Permissions


@dataclass(frozen=True, kw_only=True)
class Decide:
    """A person's word on one call that waits for it (A11.4)."""

    approval_id: UUID
    decision: Literal["approve", "reject"]
    arguments: dict[str, JSON] | None = None
    feedback: str = ""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Context(_Strict):
    url: str = ""
    text: str = ""


class _Choices(_Strict):
    """How a turn is run, and by which name its outcome is asked for."""

    tier: Literal["", "standard", "advanced", "small"] | None = None
    mode: Literal["", "fast", "deep"] | None = None
    run_id: str | None = None


class MessageBody(_Choices):
    """The fields of a message as they come over the wire."""

    text: str = ""
    attachments: list[str] = []
    context: _Context | None = None


class RetryBody(_Choices):
    message_id: str


class EditBody(RetryBody):
    text: str


class SwitchBody(_Strict):
    message_id: str
    branch: int = Field(ge=0, le=GREATEST_BRANCH)


def clean_text(text: str) -> str:
    """NUL is dropped, half a character is refused, and nobody speaks for the server (T11, A15.6)."""
    if _SURROGATES.search(text):
        raise InvalidRequest("The text holds half of a surrogate pair.")
    return strip_server_tags(text.replace("\x00", ""))


def checked_text(text: str) -> str:
    """A message's text: clean and not too long."""
    if len(text) > LIMITS.message_characters:
        raise InvalidRequest(
            f"A message may have {LIMITS.message_characters:,} characters; this one has {len(text):,}.",
            code="message_too_long",
        )
    return clean_text(text)


def checked_run_id(run_id: str | None) -> str | None:
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise InvalidRequest("A run_id has 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return run_id


def parse_send(
    data: dict[str, JSON],
    *,
    session_id: UUID,
    user_id: int,
    origin: str,
    permissions: Permissions,
    author: str = "",
) -> SendMessage:
    body = parse(MessageBody, data)
    if len(body.attachments) > LIMITS.attachments:
        raise InvalidRequest(
            f"At most {LIMITS.attachments} files go with a message.", code="too_many_attachments"
        )
    text = checked_text(body.text)
    if not text.strip() and not body.attachments:
        raise InvalidRequest("The message is empty.", code="empty_message")
    return SendMessage(
        session_id=session_id,
        user_id=user_id,
        text=text,
        attachments=tuple(body.attachments),
        page_context=_page_context(body.context),
        tier=body.tier or "",
        mode=body.mode or "",
        run_id=checked_run_id(body.run_id),
        origin=origin,
        permissions=permissions,
        author=author,
    )


def parse_resend(
    body: RetryBody, *, session_id: UUID, user_id: int, origin: str, permissions: Permissions
) -> Resend:
    message_id = as_uuid(body.message_id)
    if message_id is None:
        raise NotFound
    return Resend(
        session_id=session_id,
        user_id=user_id,
        message_id=message_id,
        text=checked_text(body.text) if isinstance(body, EditBody) else None,
        tier=body.tier or "",
        mode=body.mode or "",
        run_id=checked_run_id(body.run_id),
        origin=origin,
        permissions=permissions,
    )


def _page_context(context: _Context | None) -> PageContext | None:
    if context is None:
        return None
    if len(context.url) > LIMITS.context_url_characters or len(context.text) > LIMITS.context_text_characters:
        raise InvalidRequest("The page context is too long.", code="context_too_long")
    return PageContext(url=clean_text(context.url), text=clean_text(context.text))


# --- the socket's commands (E2) ----------------------------------------------------------------------


class _Command(_Strict):
    ref: str | int | None = None


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


class DecideCall(_Strict):
    """One decision; edited arguments only with an approval (A11.4)."""

    approval_id: str
    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=FEEDBACK_CHARACTERS)


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


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], data: JSON) -> M:
    """Validate what came over the wire; the answer names each field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        raise InvalidRequest(_explain(problem)) from problem
    except RecursionError as problem:
        raise InvalidRequest("The JSON is nested too deeply.") from problem


def _explain(problem: ValidationError) -> str:
    """At most three problems, without the values that caused them."""
    found = problem.errors(include_url=False, include_context=False, include_input=False)
    places = [".".join(str(part) for part in error["loc"] if part != "command") for error in found[:3]]
    said = [f"{place or 'body'}: {error['msg']}" for place, error in zip(places, found, strict=False)]
    return "; ".join(said)


def decisions_of(given: Sequence[DecideCall]) -> list[Decide]:
    """What was decided; arguments go with an approval alone, and an id that is none names nothing."""
    decisions = []
    for one in given:
        approval_id = as_uuid(one.approval_id)
        if approval_id is None:
            raise NotFound
        if one.arguments is not None and one.decision == "reject":
            raise InvalidRequest("A rejected call has no arguments to change.")
        decisions.append(
            Decide(
                approval_id=approval_id, decision=one.decision, arguments=one.arguments, feedback=one.feedback
            )
        )
    return decisions


def as_uuid(text: str) -> UUID | None:
    """A canonical lower-case id, or None: anything else names nothing."""
    try:
        value = UUID(text)
    except ValueError:
        return None
    return value if str(value) == text else None
