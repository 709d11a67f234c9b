"""What is said to the agent, and how it may be said: text, files, choices and their limits (T11)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Protocol
from uuid import UUID

from pydantic import Field

from copilot.commands.parsing import Strict, as_uuid, parse
from copilot.context import Arrival
from copilot.errors import InvalidRequest, NotFound
from copilot.events import JSON
from copilot.permissions import Permissions
from copilot.ports import Parent
from copilot.tags import strip_server_tags


@dataclass(frozen=True)
class Limits:
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


class Settings(Protocol):
    MESSAGE_CHARACTERS: int


LIMITS = Limits()
_now: dict[Literal["message_characters"], int] = {"message_characters": 64_000}
GREATEST_BRANCH = 2**31 - 1  # what the column holds
RUN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SPOKEN_FOR = ("schedule", "goal", "parent")  # said for the owner, who has not spoken
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
    arrival: Arrival = field(default_factory=Arrival)

    @property
    def of_owner(self) -> bool:
        """Whether the session's owner speaks: no other member of a channel, and no schedule, goal or turn (A11.8)."""
        if self.origin in SPOKEN_FOR:
            return False
        return not self.author if self.arrival.reply is None else self.arrival.reply.of_payer


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


class _Context(Strict):
    url: str = ""
    text: str = ""


class _Choices(Strict):
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


class SwitchBody(Strict):
    message_id: str
    branch: int = Field(ge=0, le=GREATEST_BRANCH)


def configure_from(settings: Settings) -> None:
    _now["message_characters"] = settings.MESSAGE_CHARACTERS


def clean_text(text: str) -> str:
    """NUL is dropped, half a character is refused, and nobody speaks for the server (T11, A15.6)."""
    if _SURROGATES.search(text):
        raise InvalidRequest("The text holds half of a surrogate pair.")
    return strip_server_tags(text.replace("\x00", ""))


def checked_text(text: str) -> str:
    """A message's text: clean and not too long."""
    most = _now["message_characters"]
    if len(text) > most:
        raise InvalidRequest(
            f"A message may have {most:,} characters; this one has {len(text):,}.",
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
