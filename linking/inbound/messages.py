"""A message from a chat platform becomes one `dispatch.submit`, once, however often it is sent (L12)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import msgspec

from copilot import dispatch, queries, turns
from copilot.commands import LIMITS, RUN_ID, SendMessage, checked_text, clean_text
from copilot.context import Arrival, Channel, ReplyAddress
from copilot.errors import Conflict, InvalidRequest, OutcomeUnknown, Refused, TooMany
from copilot.events import JSON
from copilot.permissions import UNRESTRICTED
from linking import caps, conversations
from linking.conversations import Claimed, Known, Open, Payer, Where
from linking.errors import MessageRefused
from linking.models import PlatformLink
from linking.names import clean_name

NAME_CHARACTERS = 64
_thread = threading.local()


@contextmanager
def _started_here() -> Iterator[None]:
    _thread.starts = True
    try:
        yield
    finally:
        _thread.starts = False


def starts_here() -> bool:
    """Whether this thread is just starting a turn for a bot: whoever asked for it carries the answer, too."""
    return getattr(_thread, "starts", False)


@dataclass(frozen=True, kw_only=True)
class IncomingMessage:
    """What somebody said to a bot. `key` names it: the same one again is the same message."""

    key: str
    where: Where
    user_id: str
    text: str
    channel: Channel  # what the way back can do (L16)
    display_name: str = ""
    role_ids: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()  # ids of files that were put into this conversation
    sources: tuple[str, ...] = ()  # what they are on the platform, where we fetch them ourselves
    reply_to: str = ""  # the platform's message that is answered
    reply_thread: str = ""  # where it is answered, if not where the conversation is
    mentioned: bool = True
    locale: str = "en"

    @property
    def digest(self) -> str:
        """Of all that a repetition must repeat; what the server itself adds may differ, files it fetches again too."""
        files = () if self.sources else self.attachments
        same = replace(self, channel=Channel(async_delivery=False, interactive=False), attachments=files)
        said = asdict(same)
        return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()

    @property
    def run_id(self) -> str:
        """Every bot's message has one, so that it becomes a turn of its own (T3.6); it tells nothing of the key."""
        named = "\x1f".join((self.where.platform, self.where.bot_account, self.key))
        return f"bot-{hashlib.sha256(named.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The answer as it is kept for a repetition (L12). `turn_id`: its own turn, or the one it waits behind."""

    state: Literal["started", "queued"]
    session_id: str
    conversation_id: str
    message_id: str
    run_id: str
    turn_id: str
    cursor: str  # from before it was said: a reader that comes late loses nothing
    position: int | None = None
    capacity: int | None = None
    ignored_attachments: list[str] = field(default_factory=list)
    replayed: bool = False

    def body(self) -> dict[str, JSON]:
        """Without what there is nothing to say of."""
        fields: dict[str, JSON] = asdict(self)
        for name in ("position", "capacity", "ignored_attachments", "replayed"):
            if not fields[name]:
                del fields[name]
        return fields


def start(message: IncomingMessage) -> Accepted:
    """A turn of its own, or a place in the queue; raises `Refused`, and then nothing stays of it."""
    message = checked(message)
    claim = claimed(message)
    return start_claimed(message, claim) if isinstance(claim, Claimed) else accepted_before(claim)


def claimed(message: IncomingMessage) -> Claimed | Known:
    where = message.where
    return conversations.claim(where.platform, where.bot_account, message.key, message.digest)


def accepted_before(known: Known) -> Accepted:
    try:
        return msgspec.convert({**known.answer, "replayed": True}, Accepted)
    except msgspec.ValidationError:  # it answered a question (`hearing`)
        raise Conflict("This key was used with another request.", code="idempotency_conflict") from None


def start_claimed(message: IncomingMessage, claim: Claimed) -> Accepted:
    try:
        accepted = _admit(message, abandoned=claim.abandoned)
    except OutcomeUnknown:
        raise  # the key stays taken: whoever sends it again is led to the session where it may stand
    except Refused:
        conversations.let_go(claim)
        raise
    conversations.keep(claim, accepted.body())
    return accepted


def checked(message: IncomingMessage) -> IncomingMessage:
    """The text and the name as they may be stored, within the limits of every door (T11)."""
    if not RUN_ID.fullmatch(message.key):
        raise InvalidRequest("An Idempotency-Key has 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    if len(message.attachments) > LIMITS.attachments:
        raise InvalidRequest(
            f"At most {LIMITS.attachments} files go with a message.", code="too_many_attachments"
        )
    text = checked_text(message.text)
    if not text.strip() and not message.attachments:
        raise InvalidRequest("The message is empty.", code="empty_message")
    return replace(message, text=text, display_name=speaker_name(message.display_name))


def speaker_name(name: str) -> str:
    """One inert line, without the server's voice (A-L12.4)."""
    return clean_name(clean_text(name), NAME_CHARACTERS)


def _admit(message: IncomingMessage, *, abandoned: bool) -> Accepted:
    payer = conversations.payer_of(message.where, message.user_id)
    stands = _said_before(message) if abandoned else None
    if stands is not None:
        return _submit(message, payer, stands)
    if payer.link is None:
        return _submit(message, payer, conversations.open_for(message.where, payer))
    return _submit_within_caps(message, payer, payer.link)


def _submit_within_caps(message: IncomingMessage, payer: Payer, link: PlatformLink) -> Accepted:
    """In a server: its share is set aside first, and given back when nothing was said after all (L8)."""
    caps.admit(
        link,
        caps.Said(
            run_id=message.run_id,
            container_id=message.where.container_id,
            platform_user_id=message.user_id,
            role_ids=message.role_ids,
            mentioned=message.mentioned,
        ),
    )
    try:
        conversation = conversations.open_for(message.where, payer)
        caps.attach(message.run_id, conversation.session_id)
        return _submit(message, payer, conversation)
    except OutcomeUnknown:
        raise  # the sweep finds out what became of it
    except Refused:
        caps.release(message.run_id)
        raise


def _said_before(message: IncomingMessage) -> Open | None:
    """Where the message went, if whoever sent it before came so far: not into another session now (A-L12.6)."""
    session_id = turns.session_of_run(conversations.sessions_at(message.where), message.run_id)
    if session_id is None:
        return None
    found = conversations.in_session(message.where.bot, session_id)
    return Open(conversation_id=found.pk, session_id=session_id) if found else None


def _submit(message: IncomingMessage, payer: Payer, conversation: Open) -> Accepted:
    cursor = queries.readers.end_of_log(conversation.session_id)
    try:
        with _started_here():
            outcome = dispatch.submit(_command(message, payer, conversation))
    except TooMany as refused:
        raise _without_amounts(refused) from refused
    return Accepted(
        state="queued" if isinstance(outcome, dispatch.Queued) else "started",
        session_id=str(conversation.session_id),
        conversation_id=str(conversation.conversation_id),
        message_id=str(outcome.message_id),
        run_id=message.run_id,
        turn_id=str(outcome.turn_id),
        cursor=cursor,
        position=outcome.position if isinstance(outcome, dispatch.Queued) else None,
        capacity=outcome.capacity if isinstance(outcome, dispatch.Queued) else None,
        ignored_attachments=list(outcome.ignored_attachments),
    )


def _command(message: IncomingMessage, payer: Payer, conversation: Open) -> SendMessage:
    """The one place where a platform's message is bound to its channel (A31.3)."""
    where = message.where
    reply = ReplyAddress(
        platform=where.platform,
        conversation_id=str(conversation.conversation_id),
        container=where.container_id,
        thread=where.thread_id or message.reply_thread,
        anchor=message.reply_to,
        speaker=message.user_id,
        of_payer=payer.speaks,
        async_delivery=message.channel.async_delivery,
        interactive=message.channel.interactive,
    )
    return SendMessage(
        session_id=conversation.session_id,
        user_id=payer.owner_id,
        text=message.text,
        attachments=message.attachments,
        run_id=message.run_id,
        origin=where.platform,
        permissions=UNRESTRICTED if payer.link is None else caps.guest_profile(payer.link.tools),
        author=message.display_name,
        arrival=Arrival(locale=message.locale, reply=reply),
    )


def _without_amounts(refused: TooMany) -> Refused:
    """What the payer may still spend is nobody's business in a chat (L8)."""
    if "window" not in refused.details:
        return refused
    return MessageRefused("limit_reached", retry_after_seconds=refused.retry_after_seconds)
