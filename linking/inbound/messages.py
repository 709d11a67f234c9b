"""Submit messages from chat platforms as turns or as answers to open questions, once per idempotency key."""

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
from linking.caps import reservations
from linking.conversations import idempotency
from linking.conversations import services as conversations
from linking.conversations.idempotency import ClaimedKey, RecordedAnswer
from linking.conversations.services import ConversationPlace, OpenConversation, Payer
from linking.errors import MessageRefused
from linking.inbound import controls
from linking.models import PlatformLink
from linking.models.fields import clean_name

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
    """Return True while this thread submits a platform message; its caller also delivers the answer."""
    return getattr(_thread_state, "starts", False)


@dataclass(frozen=True, kw_only=True)
class IncomingMessage:
    key: str  # idempotency key: the same key again is the same message
    where: ConversationPlace
    user_id: str
    text: str
    channel: Channel  # capabilities of the platform the answer goes to
    display_name: str = ""
    role_ids: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()  # ids of files that are stored in this conversation
    sources: tuple[str, ...] = ()  # the platform's references of files that we fetched ourselves
    reply_to: str = ""  # the platform's message that the answer refers to
    reply_thread: str = ""  # thread for the answer, if it is not the conversation's own
    mentioned: bool = True
    locale: str = "en"

    @property
    def digest(self) -> str:
        """Hash everything that must be equal in a retry.

        The channel and files that we fetch ourselves are left out: they may differ between two receptions.
        """
        files = () if self.sources else self.attachments
        comparable = replace(
            self, channel=Channel(async_delivery=False, interactive=False), attachments=files
        )
        return hashlib.sha256(msgspec.json.encode(asdict(comparable), order="deterministic")).hexdigest()

    @property
    def run_id(self) -> str:
        """Derive the run id. It gives the message a turn of its own and does not reveal the key."""
        qualified_key = "\x1f".join((self.where.platform, self.where.bot_account, self.key))
        return f"bot-{hashlib.sha256(qualified_key.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, kw_only=True)
class AcceptedMessage:
    """The response to a submitted message, stored for retries with the same key."""

    state: Literal["started", "queued"]
    session_id: str
    conversation_id: str
    message_id: str
    run_id: str
    turn_id: str  # its own turn, or the one it is queued behind
    cursor: str  # taken before the message was submitted, so that a late reader misses nothing
    position: int | None = None
    capacity: int | None = None
    ignored_attachments: list[str] = field(default_factory=list)
    replayed: bool = False

    def to_body(self) -> dict[str, JSON]:
        fields: dict[str, JSON] = asdict(self)
        for name in ("position", "capacity", "ignored_attachments", "replayed"):
            if not fields[name]:
                del fields[name]
        return fields


def start_turn(message: IncomingMessage) -> AcceptedMessage:
    """Start a turn for the message or queue it. If it raises RequestRefused, nothing is left of the message."""
    message = validate_message(message)
    claim = claim_message(message)
    return start_claimed_turn(message, claim) if isinstance(claim, ClaimedKey) else replay_accepted(claim)


def claim_message(message: IncomingMessage) -> ClaimedKey | RecordedAnswer:
    where = message.where
    return idempotency.claim_key(where.platform, where.bot_account, message.key, message.digest)


def replay_accepted(known: RecordedAnswer) -> AcceptedMessage:
    try:
        return msgspec.convert({**known.answer, "replayed": True}, AcceptedMessage)
    except msgspec.ValidationError:  # the recorded answer is an AnsweredQuestion
        raise Conflict(
            "This idempotency key was already used for a different request.", code="idempotency_conflict"
        ) from None


def start_claimed_turn(message: IncomingMessage, claim: ClaimedKey) -> AcceptedMessage:
    try:
        accepted = _admit_message(message, abandoned=claim.abandoned)
    except OutcomeUnknown:
        raise  # the key stays claimed, and a retry looks in the session where the message may have arrived
    except RequestRefused:
        idempotency.release_key(claim)
        raise
    idempotency.record_answer(claim, accepted.to_body())
    return accepted


def validate_message(message: IncomingMessage) -> IncomingMessage:
    """Check the limits that hold for every client, and return the message with cleaned text and name."""
    if not RUN_ID_PATTERN.fullmatch(message.key):
        raise InvalidRequest("Use an Idempotency-Key of 1 to 128 characters from A-Z a-z 0-9 _ . : -")
    if len(message.attachments) > REQUEST_LIMITS.attachments:
        raise InvalidRequest(
            f"You can attach up to {REQUEST_LIMITS.attachments} files.", code="too_many_attachments"
        )
    text = validate_text(message.text)
    if not text.strip() and not message.attachments:
        raise InvalidRequest("The message is empty.", code="empty_message")
    return replace(message, text=text, display_name=clean_speaker_name(message.display_name))


def clean_speaker_name(name: str) -> str:
    return clean_name(clean_text(name), MAX_NAME_CHARACTERS)


def _admit_message(message: IncomingMessage, *, abandoned: bool) -> AcceptedMessage:
    payer = conversations.find_payer(message.where, message.user_id)
    earlier = _find_earlier_conversation(message) if abandoned else None
    if earlier is not None:
        return _submit_message(message, payer, earlier)
    if payer.link is None:
        return _submit_message(message, payer, conversations.get_or_open_conversation(message.where, payer))
    return _submit_within_caps(message, payer, payer.link)


def _submit_within_caps(message: IncomingMessage, payer: Payer, link: PlatformLink) -> AcceptedMessage:
    """Reserve the message's share of the server's caps, submit it, and release the reservation if it is refused."""
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
        raise  # the sweep settles the reservation
    except RequestRefused:
        reservations.release_reservation(message.run_id)
        raise


def _find_earlier_conversation(message: IncomingMessage) -> OpenConversation | None:
    """Return the conversation that an interrupted earlier attempt submitted the message to, if it got that far."""
    session_id = turn_details.find_session_of_run(
        conversations.list_place_sessions(message.where), message.run_id
    )
    if session_id is None:
        return None
    conversation = conversations.find_conversation_in_session(message.where.bot, session_id)
    return OpenConversation(conversation_id=conversation.pk, session_id=session_id) if conversation else None


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
        else caps_admission.build_guest_permissions(payer.link.tools),
        author=message.display_name,
        inbound_context=InboundContext(locale=message.locale, reply=reply),
    )


def _hide_amounts(refused: TooManyRequests) -> RequestRefused:
    """Replace a spending limit's details by a plain refusal: people in a chat must not see the payer's amounts."""
    if "window" not in refused.details:
        return refused
    return MessageRefused("limit_reached", retry_after_seconds=refused.retry_after_seconds)


# --- Messages to our own bots, which may answer an open question ---


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    question_id: str
    session_id: str


def receive_message(message: IncomingMessage) -> AcceptedMessage | AnsweredQuestion:
    """Submit a message as the answer to the open question, or else as an ordinary message.

    An answer that comes too late or from somebody who was not asked is an ordinary message. Raise like `start_turn`.
    """
    message = validate_message(message)
    claim = claim_message(message)
    if isinstance(claim, RecordedAnswer):
        return _replay_message(message, claim)
    pending = None if claim.abandoned else _find_pending_answer(message)
    if pending is not None:
        # Recorded before it is submitted: if this process dies in between, the retry submits it as the answer
        # and does not start a turn.
        idempotency.record_answer(claim, asdict(pending.answered))
        if _submit_answer(message, pending):
            return pending.answered
        idempotency.clear_answer(claim)
    return start_claimed_turn(message, claim)


def _replay_message(message: IncomingMessage, known: RecordedAnswer) -> AcceptedMessage | AnsweredQuestion:
    if "question_id" not in known.answer:
        return replay_accepted(known)
    answered = msgspec.convert(known.answer, AnsweredQuestion)
    pending = _find_pending_answer(message)
    if pending is not None and pending.answered == answered:
        _submit_answer(message, pending)
    return answered


@dataclass(frozen=True, kw_only=True)
class _PendingAnswer:
    answered: AnsweredQuestion
    choice: str | None


def _find_pending_answer(message: IncomingMessage) -> _PendingAnswer | None:
    if not message.text.strip() or message.attachments:
        return None
    conversation = conversations.find_conversation_with_question(message.where)
    if conversation is None:
        return None
    questions = chat_serializers.list_open_questions(conversation.session_id)
    if not questions:
        return None
    choice = message.text if message.text in questions[0].choices else None
    answered = AnsweredQuestion(question_id=questions[0].id, session_id=str(conversation.session_id))
    return _PendingAnswer(answered=answered, choice=choice)


def _submit_answer(message: IncomingMessage, pending: _PendingAnswer) -> bool:
    """Return False if the question does not accept the message as its answer."""
    try:
        controls.answer_question(
            message.where.bot,
            UUID(pending.answered.question_id),
            user_id=message.user_id,
            text=None if pending.choice else message.text,
            choice=pending.choice,
        )
    except (Conflict, Forbidden, InvalidRequest):
        return False
    return True
