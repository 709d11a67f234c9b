"""A message from a chat platform becomes one `dispatch.submit`, once, however often it is sent (L12)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Literal
from uuid import UUID

import msgspec

from config.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    OutcomeUnknown,
    RequestRefused,
    TooManyRequests,
)
from config.core.json_values import JSON
from copilot.chat import admission, admission_outcomes, turn_details
from copilot.chat import serializers as chat_serializers
from copilot.chat.commands import REQUEST_LIMITS, RUN_ID_PATTERN, SendMessage, clean_text, validate_text
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import Channel, InboundContext, ReplyAddress
from copilot.realtime import fanout
from linking.caps import admission as caps_admission
from linking.caps import permissions, reservations
from linking.conversations import idempotency
from linking.conversations import services as conversations
from linking.conversations.idempotency import ClaimedKey, RecordedAnswer
from linking.conversations.services import ConversationPlace, OpenConversation, Payer
from linking.display_names import clean_name
from linking.errors import MessageRefused
from linking.inbound import controls
from linking.models import PlatformLink

MAX_NAME_CHARACTERS = 64
_thread_state = threading.local()


@contextmanager
def _mark_starting() -> Iterator[None]:
    _thread_state.starts = True
    try:
        yield
    finally:
        _thread_state.starts = False


def is_starting_turn() -> bool:
    """Whether this thread is just starting a turn for a bot: whoever asked for it carries the answer, too."""
    return getattr(_thread_state, "starts", False)


@dataclass(frozen=True, kw_only=True)
class IncomingMessage:
    """What somebody said to a bot. `key` names it: the same one again is the same message."""

    key: str
    where: ConversationPlace
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
class AcceptedMessage:
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

    def to_body(self) -> dict[str, JSON]:
        """Without what there is nothing to say of."""
        fields: dict[str, JSON] = asdict(self)
        for name in ("position", "capacity", "ignored_attachments", "replayed"):
            if not fields[name]:
                del fields[name]
        return fields


def start_turn(message: IncomingMessage) -> AcceptedMessage:
    """A turn of its own, or a place in the queue; raises `Refused`, and then nothing stays of it."""
    message = validate_message(message)
    claim = claim_message(message)
    return start_claimed_turn(message, claim) if isinstance(claim, ClaimedKey) else replay_accepted(claim)


def claim_message(message: IncomingMessage) -> ClaimedKey | RecordedAnswer:
    where = message.where
    return idempotency.claim_key(where.platform, where.bot_account, message.key, message.digest)


def replay_accepted(known: RecordedAnswer) -> AcceptedMessage:
    try:
        return msgspec.convert({**known.answer, "replayed": True}, AcceptedMessage)
    except msgspec.ValidationError:  # it answered a question (`hearing`)
        raise Conflict("This key was used with another request.", code="idempotency_conflict") from None


def start_claimed_turn(message: IncomingMessage, claim: ClaimedKey) -> AcceptedMessage:
    try:
        accepted = _admit_message(message, abandoned=claim.abandoned)
    except OutcomeUnknown:
        raise  # the key stays taken: whoever sends it again is led to the session where it may stand
    except RequestRefused:
        idempotency.release_key(claim)
        raise
    idempotency.record_answer(claim, accepted.to_body())
    return accepted


def validate_message(message: IncomingMessage) -> IncomingMessage:
    """The text and the name as they may be stored, within the limits of every door (T11)."""
    if not RUN_ID_PATTERN.fullmatch(message.key):
        raise InvalidRequest("An Idempotency-Key has 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    if len(message.attachments) > REQUEST_LIMITS.attachments:
        raise InvalidRequest(
            f"At most {REQUEST_LIMITS.attachments} files go with a message.", code="too_many_attachments"
        )
    text = validate_text(message.text)
    if not text.strip() and not message.attachments:
        raise InvalidRequest("The message is empty.", code="empty_message")
    return replace(message, text=text, display_name=clean_speaker_name(message.display_name))


def clean_speaker_name(name: str) -> str:
    """One inert line, without the server's voice (A-L12.4)."""
    return clean_name(clean_text(name), MAX_NAME_CHARACTERS)


def _admit_message(message: IncomingMessage, *, abandoned: bool) -> AcceptedMessage:
    payer = conversations.find_payer(message.where, message.user_id)
    stands = _find_earlier_conversation(message) if abandoned else None
    if stands is not None:
        return _submit_message(message, payer, stands)
    if payer.link is None:
        return _submit_message(message, payer, conversations.get_or_open_conversation(message.where, payer))
    return _submit_within_caps(message, payer, payer.link)


def _submit_within_caps(message: IncomingMessage, payer: Payer, link: PlatformLink) -> AcceptedMessage:
    """In a server: its share is set aside first, and given back when nothing was said after all (L8)."""
    caps_admission.admit_message(
        link,
        caps_admission.ServerMessage(
            run_id=message.run_id,
            container_id=message.where.container_id,
            platform_user_id=message.user_id,
            role_ids=message.role_ids,
            mentioned=message.mentioned,
        ),
    )
    try:
        conversation = conversations.get_or_open_conversation(message.where, payer)
        reservations.set_reservation_session(message.run_id, conversation.session_id)
        return _submit_message(message, payer, conversation)
    except OutcomeUnknown:
        raise  # the sweep finds out what became of it
    except RequestRefused:
        reservations.release_reservation(message.run_id)
        raise


def _find_earlier_conversation(message: IncomingMessage) -> OpenConversation | None:
    """Where the message went, if whoever sent it before came so far: not into another session now (A-L12.6)."""
    session_id = turn_details.find_session_of_run(
        conversations.list_place_sessions(message.where), message.run_id
    )
    if session_id is None:
        return None
    found = conversations.find_conversation_in_session(message.where.bot, session_id)
    return OpenConversation(conversation_id=found.pk, session_id=session_id) if found else None


def _submit_message(
    message: IncomingMessage, payer: Payer, conversation: OpenConversation
) -> AcceptedMessage:
    cursor = fanout.get_end_of_log(conversation.session_id)
    try:
        with _mark_starting():
            outcome = admission.submit_message(_build_command(message, payer, conversation))
    except TooManyRequests as refused:
        raise _hide_amounts(refused) from refused
    return AcceptedMessage(
        state="queued" if isinstance(outcome, admission_outcomes.SubmissionQueued) else "started",
        session_id=str(conversation.session_id),
        conversation_id=str(conversation.conversation_id),
        message_id=str(outcome.message_id),
        run_id=message.run_id,
        turn_id=str(outcome.turn_id),
        cursor=cursor,
        position=outcome.position if isinstance(outcome, admission_outcomes.SubmissionQueued) else None,
        capacity=outcome.capacity if isinstance(outcome, admission_outcomes.SubmissionQueued) else None,
        ignored_attachments=list(outcome.ignored_attachments),
    )


def _build_command(message: IncomingMessage, payer: Payer, conversation: OpenConversation) -> SendMessage:
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
        permissions=UNRESTRICTED
        if payer.link is None
        else permissions.build_guest_permissions(payer.link.tools),
        author=message.display_name,
        arrival=InboundContext(locale=message.locale, reply=reply),
    )


def _hide_amounts(refused: TooManyRequests) -> RequestRefused:
    """What the payer may still spend is nobody's business in a chat (L8)."""
    if "window" not in refused.details:
        return refused
    return MessageRefused("limit_reached", retry_after_seconds=refused.retry_after_seconds)


# MERGED inbound.hearing: What somebody writes to one of our own bots: the answer to an open question, or a message like any other (A12.2).


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """The words went to the question that the agent had asked."""

    question_id: str
    session_id: str


def receive_message(message: IncomingMessage) -> AcceptedMessage | AnsweredQuestion:
    """Once, however often it comes. Raises `Refused` as `start` does; a late answer, and one of somebody else, is an
    ordinary message."""
    message = validate_message(message)
    claim = claim_message(message)
    if isinstance(claim, RecordedAnswer):
        return _replay_message(message, claim)
    asked = None if claim.abandoned else _find_pending_answer(message)
    if asked is not None:
        # Before it is given: should this process die in between, who comes after it gives it, and starts nothing.
        idempotency.record_answer(claim, asdict(asked.answered))
        if _submit_answer(message, asked):
            return asked.answered
        idempotency.clear_answer(claim)
    return start_claimed_turn(message, claim)


def _replay_message(message: IncomingMessage, known: RecordedAnswer) -> AcceptedMessage | AnsweredQuestion:
    if "question_id" not in known.answer:
        return replay_accepted(known)
    answered = msgspec.convert(known.answer, AnsweredQuestion)
    asked = _find_pending_answer(message)
    if asked is not None and asked.answered == answered:
        _submit_answer(message, asked)
    return answered


@dataclass(frozen=True, kw_only=True)
class _PendingAnswer:
    """An open question, and the message as an answer to it."""

    answered: AnsweredQuestion
    choice: str | None


def _find_pending_answer(message: IncomingMessage) -> _PendingAnswer | None:
    if not message.text.strip() or message.attachments:
        return None
    place = conversations.find_conversation_with_question(message.where)
    questions = chat_serializers.list_open_questions(place.session_id) if place is not None else []
    if place is None or not questions:
        return None
    choice = message.text if message.text in questions[0].choices else None
    answered = AnsweredQuestion(question_id=questions[0].id, session_id=str(place.session_id))
    return _PendingAnswer(answered=answered, choice=choice)


def _submit_answer(message: IncomingMessage, asked: _PendingAnswer) -> bool:
    """Whether it was taken as the answer."""
    try:
        controls.answer_question(
            message.where.bot,
            UUID(asked.answered.question_id),
            user_id=message.user_id,
            text=None if asked.choice else message.text,
            choice=asked.choice,
        )
    except (Conflict, Forbidden, InvalidRequest):
        return False
    return True
