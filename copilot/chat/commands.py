"""Commands that clients send to a session, with the validation and limits of their fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from pydantic import Field

from config.core.errors import InvalidRequest, NotFound
from config.core.json_values import JSON, StrictModel, parse_uuid, validate_body
from copilot.chat.permissions import Permissions
from copilot.chat.prompt_tags import strip_server_tags
from copilot.chat.turn_context import InboundContext


@dataclass(frozen=True)
class RequestLimits:
    """Limits of requests, except the length of a message, which installations may lower."""

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
ORIGINS_WITHOUT_SPEAKER = (
    "schedule",
    "goal",
    "parent",
    "follow_up",
)  # sent on behalf of the owner, not by the owner
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class PageContext:
    url: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SendMessage:
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
    parent: ParentTurn | None = None  # the turn that sends it, if one does
    inbound_context: InboundContext = field(default_factory=InboundContext)

    @property
    def of_owner(self) -> bool:
        """Tell whether the owner speaks, and not a member of a channel, a schedule, a goal or a turn."""
        if self.origin in ORIGINS_WITHOUT_SPEAKER:
            return False
        return not self.author if self.inbound_context.reply is None else self.inbound_context.reply.of_payer


@dataclass(frozen=True, kw_only=True)
class ResendMessage:
    """Send a message again, edited or not: `message_id` itself, or the one that it answers."""

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
    tier: Literal["", "standard", "advanced", "small"] | None = None
    mode: Literal["", "fast", "deep"] | None = None
    run_id: str | None = None


class MessageBody(_TurnChoices):
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
    if _LONE_SURROGATES.search(text):
        raise InvalidRequest("The text contains an incomplete character (a lone surrogate).")
    return strip_server_tags(text.replace("\x00", ""))


def validate_text(text: str) -> str:
    limit = _message_limits["message_characters"]
    if len(text) > limit:
        raise InvalidRequest(
            f"Messages can be up to {limit:,} characters (yours has {len(text):,}).",
            code="message_too_long",
            field="text",
        )
    return clean_text(text)


def validate_run_id(run_id: str | None) -> str | None:
    if run_id is not None and not RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidRequest("A run_id must be 1 to 128 characters from A-Z, a-z, 0-9, _, ., : and -.")
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
            f"You can attach up to {REQUEST_LIMITS.attachments} files.", code="too_many_attachments"
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


# --- Approval decisions ------------------------------------------------------------------------------

MAX_FEEDBACK_CHARACTERS = 2_000
MAX_DECISIONS = 100  # in one request; a reply makes 16 calls at most


@dataclass(frozen=True, kw_only=True)
class DecideApproval:
    """A person's decision about one tool call."""

    approval_id: UUID
    decision: Literal["approve", "reject"]
    arguments: dict[str, JSON] | None = None
    feedback: str = ""


class DecisionBody(StrictModel):
    """One decision. Edited arguments are allowed only with an approval."""

    approval_id: str
    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: str = Field(default="", max_length=MAX_FEEDBACK_CHARACTERS)


def parse_decisions(bodies: Sequence[DecisionBody]) -> list[DecideApproval]:
    decisions = []
    for body in bodies:
        approval_id = parse_uuid(body.approval_id)
        if approval_id is None:
            raise NotFound
        if body.arguments is not None and body.decision == "reject":
            raise InvalidRequest("You can't edit the arguments of a call that you reject.")
        decisions.append(
            DecideApproval(
                approval_id=approval_id,
                decision=body.decision,
                arguments=body.arguments,
                feedback=body.feedback,
            )
        )
    return decisions


# --- Messages of the server --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ParentTurn:
    """The running turn that sends a message: its stop covers the message, its budget pays for the answer."""

    turn_id: UUID
    fence: int
    budget_microdollars: int
    is_owed_result: bool = False  # its session gets the result later, unless a tool call returns it before
