"""Admit a message: start a turn with it, queue it behind the running turn, or refuse it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID, uuid4

import structlog
from django.db import DatabaseError, IntegrityError

from config.core import rate_limits, trace_context
from config.core.db import flush_wal
from config.core.errors import InvalidRequest, ServiceUnavailable, TooManyRequests
from copilot.agent import model_context
from copilot.agents import services as agents
from copilot.chat import messages, questions, queue, selectors, turn_transitions, turns
from copilot.chat.admission_limits import apply_plan_to_message, place_hold, release_hold, try_place_hold
from copilot.chat.admission_outcomes import (
    OUTAGE_ERRORS,
    SubmissionQueued,
    SubmissionStarted,
    build_taken_outcome,
    resolve_after_outage,
)
from copilot.chat.announcements import announce_queued_turn, publish_events
from copilot.chat.commands import ORIGINS_WITHOUT_SPEAKER, REQUEST_LIMITS, PageContext, SendMessage
from copilot.chat.idempotency import build_outcome_of_message, replay_first_outcome
from copilot.chat.next_turn import release_or_start_next, restore_session_in_redis
from copilot.chat.paused_turns import replace_paused_turn
from copilot.chat.sub_sessions import reserve_sub_session_slot
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.models import Message
from copilot.realtime import lease
from copilot.realtime.lease import QueueMember
from copilot.realtime.payloads import AttachmentPayload, MessagePayload

log = structlog.get_logger(__name__)

MAX_DEFAULT_TITLE_CHARACTERS = 60


def submit_message(command: SendMessage) -> SubmissionStarted | SubmissionQueued:
    """Submit a message to the agent. Every client, schedule and tool call comes through here."""
    with trace_context.start_span(
        "dispatch", session_id=str(command.session_id), origin=command.origin
    ) as span:
        outcome = _submit_once(command)
        span.note(queued=isinstance(outcome, SubmissionQueued))
        return outcome


def _submit_once(command: SendMessage) -> SubmissionStarted | SubmissionQueued:
    command = apply_plan_to_message(command)
    turn_id = uuid4()
    try:
        held = try_place_hold(command.user_id, turn_id)
    except TooManyRequests:
        # Somebody else's session must look missing, whether or not the sender is at a limit.
        selectors.get_session(command.user_id, command.session_id)
        if command.run_id is None or (first := replay_first_outcome(command)) is None:
            raise
        return first  # it was accepted before the limit was reached
    with ExitStack() as unused_hold:
        unused_hold.callback(release_hold, command.user_id, turn_id)
        outcome = _store_and_place(command, turn_id, held=held)
        if outcome is not None and outcome.turn_id == turn_id:
            unused_hold.pop_all()  # the turn is open: its worker releases the hold
    return outcome or replay_first_outcome(command) or _submit_once(command)


def _store_and_place(
    command: SendMessage, turn_id: UUID, *, held: bool
) -> SubmissionStarted | SubmissionQueued | None:
    """Store the message, then start or queue it.

    Return None when nothing was stored: its run_id is taken, or the session is not the user's.
    """
    attachments, ignored = _resolve_attachments(command)
    message_id = uuid4()
    new_turn = turns.NewTurn(
        turn_id=turn_id,
        token=uuid4(),
        session_id=command.session_id,
        message_id=message_id,
        origin=command.origin,
        run_id=command.run_id,
        tier=command.tier,
        mode=command.mode,
        permissions=command.permissions,
        accept_number=0,  # replaced once the message has its row
        title=make_default_title(command.text),
        parent=command.parent.turn_id if command.parent else None,
        budget=command.parent.budget_microdollars if command.parent else 0,
        of_owner=command.of_owner,
        held=held,
    )
    try:
        return _accept_message(new_turn, command, attachments, ignored)
    except OUTAGE_ERRORS:
        return resolve_after_outage(new_turn, ignored)


def _accept_message(
    new_turn: turns.NewTurn, command: SendMessage, attachments: list[AttachmentPayload], ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    message_id = new_turn.message_id
    page = command.page_context or PageContext()
    context = model_context.build_message_context(
        sent=messages.SENT_TIME_PLACEHOLDER,
        speaker=command.author if command.inbound_context.reply else "",
        page_url=page.url,
        page_text=page.text,
        attachments=attachments,
    )
    with reserve_sub_session_slot(command):
        accepted = messages.insert_message(message_id, command, attachments, context, durable=False)
    if accepted is None:
        return None
    if accepted.wants_memories and command.permissions.memory:
        add_memories_to_context(message_id, command)
    if accepted.built_agent_id is not None:
        messages.append_server_context(
            message_id, agents.build_builder_context(command.user_id, accepted.built_agent_id)
        )
    number = accepted.accept_number
    member = QueueMember(number, command.run_id is not None, str(message_id))
    payload = _build_message_payload(message_id, command, attachments)
    return _claim_or_queue(replace(new_turn, accept_number=number), member, command.user_id, payload, ignored)


def add_memories_to_context(message_id: UUID, command: SendMessage) -> None:
    """Add the user's memories to a session's first message, before a turn freezes its context."""
    memory_context = memories.build_memory_context(command.user_id, command.text)
    if not memory_context.text:
        return
    try:
        messages.append_server_context(message_id, memory_context.text, sources=memory_context.sources)
    except DatabaseError:
        log.warning("memory_context_failed", session_id=command.session_id, message_id=message_id)


def _build_message_payload(
    message_id: UUID, command: SendMessage, attachments: list[AttachmentPayload]
) -> MessagePayload:
    return MessagePayload(
        id=str(message_id),
        sequence=0,
        turn_id=None,
        kind="user",
        role="user",
        content=command.text,
        author=command.author,
        attachments=attachments,
        branch=0,
        created_at="",
        origin=command.origin if command.origin in ORIGINS_WITHOUT_SPEAKER else "",
    )


def _resolve_attachments(command: SendMessage) -> tuple[list[AttachmentPayload], list[str]]:
    if not command.attachments:
        return [], []
    # In a channel the speaker need not be the owner, so only files of that session may be attached.
    only_session = command.session_id if command.inbound_context.reply else None
    attachments, ignored = files.resolve_attachments(
        command.user_id, command.attachments, session_id=only_session
    )
    if not attachments and not command.text.strip():
        raise InvalidRequest(
            "The message has no text, and none of its files can be used.", code="empty_message"
        )
    return attachments, ignored


def make_default_title(text: str) -> str:
    words = " ".join(text.split())
    if len(words) <= MAX_DEFAULT_TITLE_CHARACTERS:
        return words
    return words[: MAX_DEFAULT_TITLE_CHARACTERS - 1].rstrip() + "…"


def _claim_or_queue(
    new_turn: turns.NewTurn, member: QueueMember, user_id: int, payload: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued:
    for _ in range(2):
        verdict = lease.claim_or_queue(
            str(new_turn.session_id),
            turn_id=str(new_turn.turn_id),
            token=str(new_turn.token),
            member=member,
            order=float(member.accept_number),
        )
        match verdict:
            case lease.SessionClaimed():
                started = _start_turn(new_turn, member, user_id, payload, ignored)
                if started is not None:
                    return started
                # Redis had lost the running turn: put it back, then queue behind it.
                restore_session_in_redis(new_turn.session_id)
            case lease.QueuedBehindTurn():
                return _abandon_paused_turn(new_turn, member, user_id, payload, ignored) or _confirm_queued(
                    new_turn, member, user_id, verdict, ignored
                )
            case lease.QueueFull():
                return _refuse_full(new_turn, ignored)
    raise ServiceUnavailable


def _start_turn(
    new_turn: turns.NewTurn, member: QueueMember, user_id: int, payload: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """Open the turn on the claimed session; None when Postgres has an unfinished turn there."""
    session_id = str(new_turn.session_id)
    try:
        _place_hold_if_needed(new_turn, user_id)
        opened = turns.open_turn(new_turn)
    except TooManyRequests:
        lease.release_lease(session_id, str(new_turn.token))
        if not messages.discard_pending_message(new_turn.message_id):
            return build_taken_outcome(new_turn, ignored)
        raise
    except IntegrityError:
        return _handle_unfinished_turn(new_turn, member, user_id, payload, ignored)
    except DatabaseError as problem:
        lease.release_lease(session_id, str(new_turn.token))
        raise ServiceUnavailable from problem
    if opened is None and _is_still_pending(new_turn.message_id):
        # Other messages go first, perhaps behind a paused turn.
        started = _abandon_paused_turn(new_turn, member, user_id, payload, ignored)
        if started is not None:
            return started
    return _announce_or_hand_over(new_turn, opened, member, user_id, payload, ignored)


def _place_hold_if_needed(new_turn: turns.NewTurn, user_id: int) -> None:
    """Hold the turn's money unless the first check did.

    Raise TooManyRequests when other turns hold the rest.
    """
    if not new_turn.held:
        place_hold(user_id, new_turn.turn_id)


def _is_still_pending(message_id: UUID) -> bool:
    return Message.objects.queued().filter(pk=message_id).exists()


def _announce_or_hand_over(
    new_turn: turns.NewTurn,
    opened: turns.OpenedTurn | None,
    member: QueueMember,
    user_id: int,
    payload: MessagePayload,
    ignored: list[str],
) -> SubmissionStarted | SubmissionQueued:
    if opened is None:  # an earlier turn took the message while this request was slow, or others go first
        lease.reorder_members(str(new_turn.session_id), {member: float(member.accept_number)})
        release_or_start_next(new_turn.session_id, new_turn.token, None)
        return build_outcome_of_message(Message.objects.get(pk=new_turn.message_id)) or build_taken_outcome(
            new_turn, ignored
        )
    cursor = announce_queued_turn(new_turn, opened, user_id, payload)
    return SubmissionStarted(
        message_id=new_turn.message_id,
        turn_id=new_turn.turn_id,
        run_id=new_turn.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


# --- Paused turns ------------------------------------------------------------------------------------


def _handle_unfinished_turn(
    new_turn: turns.NewTurn, member: QueueMember, user_id: int, payload: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """Handle an unfinished turn without a lease: one that waits for a person, or one Redis has lost."""
    if (started := _abandon_paused_turn(new_turn, member, user_id, payload, ignored)) is not None:
        return started
    lease.release_lease(str(new_turn.session_id), str(new_turn.token))
    paused_turn_id = turn_transitions.get_paused_turn_id(new_turn.session_id)
    if paused_turn_id is None:
        return None
    position = lease.enqueue_member(str(new_turn.session_id), member, float(member.accept_number))
    if position is None:
        return _refuse_full(new_turn, ignored)
    verdict = lease.QueuedBehindTurn(position=position, turn_id=str(paused_turn_id))
    return _confirm_queued(new_turn, member, user_id, verdict, ignored)


def _abandon_paused_turn(
    new_turn: turns.NewTurn, member: QueueMember, user_id: int, payload: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """Replace a turn that waits for approval by the owner's new message.

    Return None when no turn waits, or when somebody other than the owner speaks.
    """
    if not new_turn.of_owner or turn_transitions.get_paused_turn_id(new_turn.session_id) is None:
        return None
    try:
        _place_hold_if_needed(new_turn, user_id)
    except TooManyRequests:  # remove every trace of the message; the turn keeps waiting
        lease.remove_members(str(new_turn.session_id), [member])
        lease.release_lease(str(new_turn.session_id), str(new_turn.token))
        if not messages.discard_pending_message(new_turn.message_id):
            return build_taken_outcome(new_turn, ignored)
        raise
    replaced = replace_paused_turn(new_turn, user_id)
    if replaced is None:
        return None
    lease.remove_members(str(new_turn.session_id), [member])
    return _announce_or_hand_over(new_turn, replaced.opened, member, user_id, payload, ignored)


def _confirm_queued(
    new_turn: turns.NewTurn,
    member: QueueMember,
    user_id: int,
    verdict: lease.QueuedBehindTurn,
    ignored: list[str],
) -> SubmissionStarted | SubmissionQueued:
    # A channel full of people is counted apart, so that it does not use up its payer's own rate limit.
    subject = str(user_id) if new_turn.of_owner else f"{user_id}:{new_turn.session_id}"
    retry_after_seconds = rate_limits.count_request(
        "queue", subject, limit=REQUEST_LIMITS.queue_calls, seconds=REQUEST_LIMITS.queue_calls_seconds
    )
    if retry_after_seconds is not None and messages.discard_pending_message(new_turn.message_id):
        lease.remove_members(str(new_turn.session_id), [member])
        raise TooManyRequests(
            "You're sending messages too quickly. Wait a moment and try again.",
            retry_after_seconds=retry_after_seconds,
        )
    flush_wal()
    running_turn_id = UUID(verdict.turn_id)
    if _supersedes_question(new_turn):
        questions.close_questions_of_turn(running_turn_id, "superseded")
    cursor = publish_events(new_turn.session_id, user_id, [(selectors.get_queue(new_turn.session_id), None)])
    return SubmissionQueued(
        message_id=new_turn.message_id,
        turn_id=running_turn_id,
        run_id=new_turn.run_id,
        position=verdict.position,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _supersedes_question(new_turn: turns.NewTurn) -> bool:
    """Tell whether the message can replace an answer: it is the owner's, and the turn takes it next."""
    return new_turn.of_owner and not any(
        message.run_id for message in queue.list_pending_messages(new_turn.session_id)
    )


def _refuse_full(new_turn: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    if not messages.discard_pending_message(new_turn.message_id):
        # The running turn took it from the rows in the meantime, so it is accepted.
        return build_taken_outcome(new_turn, ignored)
    raise TooManyRequests(
        f"The queue is full ({lease.QUEUE_CAPACITY} messages). Wait until the current answer is done.",
        code="queue_full",
        capacity=lease.QUEUE_CAPACITY,
    )
