"""What is said to the agent, and how it may be said: text, files, choices and their limits (T11)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from pydantic import Field

from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import JSON
from config.core.validation import StrictModel, parse_uuid, validate_body
from copilot.chat.permissions import Permissions
from copilot.chat.prompt_tags import strip_server_tags
from copilot.chat.turn_context import InboundContext


@dataclass(frozen=True)
class RequestLimits:
    """T11, in one place, but for the length of a message: installations may choose a smaller one (A0.7)."""

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


class MessageSettings(Protocol):
    MESSAGE_CHARACTERS: int


REQUEST_LIMITS = RequestLimits()
_message_limits: dict[Literal["message_characters"], int] = {"message_characters": 64_000}
MAX_BRANCH_NUMBER = 2**31 - 1  # what the column holds
RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
ORIGINS_WITHOUT_SPEAKER = ("schedule", "goal", "parent")  # said for the owner, who has not spoken
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


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
    parent: ParentTurn | None = None  # another turn says it (A21)
    arrival: InboundContext = field(default_factory=InboundContext)

    @property
    def of_owner(self) -> bool:
        """Whether the session's owner speaks: no other member of a channel, and no schedule, goal or turn (A11.8)."""
        if self.origin in ORIGINS_WITHOUT_SPEAKER:
            return False
        return not self.author if self.arrival.reply is None else self.arrival.reply.of_payer


@dataclass(frozen=True, kw_only=True)
class ResendMessage:
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


class _PageContextBody(StrictModel):
    url: str = ""
    text: str = ""


class _TurnChoices(StrictModel):
    """How a turn is run, and by which name its outcome is asked for."""

    tier: Literal["", "standard", "advanced", "small"] | None = None
    mode: Literal["", "fast", "deep"] | None = None
    run_id: str | None = None


class MessageBody(_TurnChoices):
    """The fields of a message as they come over the wire."""

    text: str = ""
    attachments: list[str] = []
    context: _PageContextBody | None = None


class RetryBody(_TurnChoices):
    message_id: str


class EditBody(RetryBody):
    text: str


class SwitchBody(StrictModel):
    message_id: str
    branch: int = Field(ge=0, le=MAX_BRANCH_NUMBER)


def configure_message_limits(settings: MessageSettings) -> None:
    _message_limits["message_characters"] = settings.MESSAGE_CHARACTERS


def clean_text(text: str) -> str:
    """NUL is dropped, half a character is refused, and nobody speaks for the server (T11, A15.6)."""
    if _LONE_SURROGATES.search(text):
        raise InvalidRequest("The text holds half of a surrogate pair.")
    return strip_server_tags(text.replace("\x00", ""))


def validate_text(text: str) -> str:
    """A message's text: clean and not too long."""
    most = _message_limits["message_characters"]
    if len(text) > most:
        raise InvalidRequest(
            f"A message may have {most:,} characters; this one has {len(text):,}.",
            code="message_too_long",
        )
    return clean_text(text)


def validate_run_id(run_id: str | None) -> str | None:
    if run_id is not None and not RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidRequest("A run_id has 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return run_id


def parse_message(
    data: dict[str, JSON],
    *,
    session_id: UUID,
    user_id: int,
    origin: str,
    permissions: Permissions,
    author: str = "",
) -> SendMessage:
    body = validate_body(MessageBody, data)
    if len(body.attachments) > REQUEST_LIMITS.attachments:
        raise InvalidRequest(
            f"At most {REQUEST_LIMITS.attachments} files go with a message.", code="too_many_attachments"
        )
    text = validate_text(body.text)
    if not text.strip() and not body.attachments:
        raise InvalidRequest("The message is empty.", code="empty_message")
    return SendMessage(
        session_id=session_id,
        user_id=user_id,
        text=text,
        attachments=tuple(body.attachments),
        page_context=_parse_page_context(body.context),
        tier=body.tier or "",
        mode=body.mode or "",
        run_id=validate_run_id(body.run_id),
        origin=origin,
        permissions=permissions,
        author=author,
    )


def parse_resend(
    body: RetryBody, *, session_id: UUID, user_id: int, origin: str, permissions: Permissions
) -> ResendMessage:
    message_id = parse_uuid(body.message_id)
    if message_id is None:
        raise NotFound
    return ResendMessage(
        session_id=session_id,
        user_id=user_id,
        message_id=message_id,
        text=validate_text(body.text) if isinstance(body, EditBody) else None,
        tier=body.tier or "",
        mode=body.mode or "",
        run_id=validate_run_id(body.run_id),
        origin=origin,
        permissions=permissions,
    )


def _parse_page_context(context: _PageContextBody | None) -> PageContext | None:
    if context is None:
        return None
    if (
        len(context.url) > REQUEST_LIMITS.context_url_characters
        or len(context.text) > REQUEST_LIMITS.context_text_characters
    ):
        raise InvalidRequest("The page context is too long.", code="context_too_long")
    return PageContext(url=clean_text(context.url), text=clean_text(context.text))


# MERGED commands.decisions: A person's word on calls that wait for it (A11.4).

MAX_FEEDBACK_CHARACTERS = 2_000
MAX_DECISIONS = 100  # in one batch; a reply makes 16 calls at most


@dataclass(frozen=True, kw_only=True)
class DecideApproval:
    """A person's word on one call that waits for it (A11.4)."""

    approval_id: UUID
    decision: Literal["approve", "reject"]
    arguments: dict[str, JSON] | None = None
    feedback: str = ""


class DecisionBody(StrictModel):
    """One decision; edited arguments only with an approval (A11.4)."""

    approval_id: str
    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=MAX_FEEDBACK_CHARACTERS)


def parse_decisions(given: Sequence[DecisionBody]) -> list[DecideApproval]:
    """What was decided; arguments go with an approval alone, and an id that is none names nothing."""
    decisions = []
    for one in given:
        approval_id = parse_uuid(one.approval_id)
        if approval_id is None:
            raise NotFound
        if one.arguments is not None and one.decision == "reject":
            raise InvalidRequest("A rejected call has no arguments to change.")
        decisions.append(
            DecideApproval(
                approval_id=approval_id, decision=one.decision, arguments=one.arguments, feedback=one.feedback
            )
        )
    return decisions


@dataclass(frozen=True, kw_only=True)
class ParentTurn:
    """The running turn for which something is said: it is stopped with it, and its cost counts there (A21.6)."""

    turn_id: UUID
    fence: int
    budget_microdollars: int


@dataclass(frozen=True, kw_only=True)
class InternalMessage:
    """A message the server itself says for a user: a child's prompt, a schedule, a goal's next step."""

    user_id: int
    session_id: UUID
    text: str
    origin: str
    permissions: Permissions
    tier: str = ""
    mode: str = ""
    run_id: str | None = None
    author: str = ""
    parent: ParentTurn | None = None
    arrival: InboundContext = field(default_factory=InboundContext)


@dataclass(frozen=True, kw_only=True)
class SubmitReceipt:
    message_id: UUID
    turn_id: UUID  # its own, or the one it waits behind
    queued: bool
