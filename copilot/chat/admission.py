"""A message arrives: start a turn, queue behind one, or refuse, decided atomically (T3)."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID, uuid4

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
from copilot.chat.commands import REQUEST_LIMITS, PageContext, SendMessage
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

log = logging.getLogger(__name__)

MAX_DEFAULT_TITLE_CHARACTERS = 60


def submit_message(command: SendMessage) -> SubmissionStarted | SubmissionQueued:
    """The only way to talk to the agent, for every door (T3)."""
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
        selectors.get_session(
            command.user_id, command.session_id
        )  # a foreign one is not there, limit or not (B7.1)
        if command.run_id is None or (first := replay_first_outcome(command)) is None:
            raise
        return first  # it was accepted before the limit was reached
    with ExitStack() as unused:
        unused.callback(release_hold, command.user_id, turn_id)
        outcome = _store_and_place(command, turn_id, held=held)
        if outcome is not None and outcome.turn_id == turn_id:
            unused.pop_all()  # the turn is open: its worker lets go of the hold
    return outcome or replay_first_outcome(command) or _submit_once(command)


def _store_and_place(
    command: SendMessage, turn_id: UUID, *, held: bool
) -> SubmissionStarted | SubmissionQueued | None:
    """Store the message and start or queue it; None: nothing was stored, because its run_id is taken or the session is not the user's."""
    attachments, ignored = _resolve_attachments(command)
    message_id = uuid4()
    opening = turns.NewTurn(
        turn_id=turn_id,
        token=uuid4(),
        session_id=command.session_id,
        message_id=message_id,
        origin=command.origin,
        run_id=command.run_id,
        tier=command.tier,
        mode=command.mode,
        permissions=command.permissions,
        accept_number=0,  # known when its row stands
        title=make_default_title(command.text),
        parent=command.parent.turn_id if command.parent else None,
        budget=command.parent.budget_microdollars if command.parent else 0,
        of_owner=command.of_owner,
        held=held,
    )
    try:
        return _accept_message(opening, command, attachments, ignored)
    except OUTAGE_ERRORS:
        return resolve_after_outage(opening, ignored)


def _accept_message(
    opening: turns.NewTurn, command: SendMessage, attachments: list[AttachmentPayload], ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """The row first, then its place: a turn of its own, or one in the queue; None without a row."""
    message_id = opening.message_id
    page = command.page_context or PageContext()
    context = model_context.build_message_context(
        sent=messages.SENT_TIME_PLACEHOLDER,
        speaker=command.author if command.arrival.reply else "",
        page_url=page.url,
        page_text=page.text,
        attachments=attachments,
    )
    with reserve_sub_session_slot(command):
        accepted = messages.insert_message(message_id, command, attachments, context, lasting=False)
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
    view = _build_message_payload(message_id, command, attachments)
    return _claim_or_queue(replace(opening, accept_number=number), member, command.user_id, view, ignored)


def add_memories_to_context(message_id: UUID, command: SendMessage) -> None:
    """What is known of the user goes with a session's first message, judged before any is merged (A25.2)."""
    warm = memories.build_memory_context(command.user_id, command.text)
    if not warm.text:
        return
    try:
        messages.append_server_context(message_id, warm.text, sources=warm.sources)
    except DatabaseError:
        log.warning("memories could not be added to a message; it goes without them")


def _build_message_payload(
    message_id: UUID, command: SendMessage, attachments: list[AttachmentPayload]
) -> MessagePayload:
    """The message as clients will see it, once it has its place."""
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
    )


def _resolve_attachments(command: SendMessage) -> tuple[list[AttachmentPayload], list[str]]:
    if not command.attachments:
        return [], []
    alone = (
        command.session_id if command.arrival.reply else None
    )  # who speaks there need not be the owner (L12)
    attachments, ignored = files.resolve_attachments(command.user_id, command.attachments, session_id=alone)
    if not attachments and not command.text.strip():
        raise InvalidRequest("The message is empty: none of its files can be used.", code="empty_message")
    return attachments, ignored


def make_default_title(text: str) -> str:
    """A conversation is called after its first words until something better is known."""
    words = " ".join(text.split())
    return (
        words
        if len(words) <= MAX_DEFAULT_TITLE_CHARACTERS
        else words[: MAX_DEFAULT_TITLE_CHARACTERS - 1].rstrip() + "…"
    )


def _claim_or_queue(
    opening: turns.NewTurn, member: QueueMember, user_id: int, view: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued:
    for _ in range(2):
        verdict = lease.claim_or_queue(
            str(opening.session_id),
            turn_id=str(opening.turn_id),
            token=str(opening.token),
            member=member,
            order=float(member.accept_number),
        )
        match verdict:
            case lease.SessionClaimed():
                started = _start_turn(opening, member, user_id, view, ignored)
                if started is not None:
                    return started
                restore_session_in_redis(
                    opening.session_id
                )  # Redis had forgotten the turn that runs: queue behind it
            case lease.QueuedBehindTurn():
                return _abandon_paused_turn(opening, member, user_id, view, ignored) or _confirm_queued(
                    opening, member, user_id, verdict, ignored
                )
            case lease.QueueFull():
                return _refuse_full(opening, ignored)
    raise ServiceUnavailable


def _start_turn(
    opening: turns.NewTurn, member: QueueMember, user_id: int, view: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """Open the turn on the claimed session; None when Postgres says one is unfinished there."""
    session_id = str(opening.session_id)
    try:
        _place_hold_if_needed(opening, user_id)
        opened = turns.open_turn(opening)
    except TooManyRequests:
        lease.release_lease(session_id, str(opening.token))
        if not messages.discard_pending_message(opening.message_id):
            return build_taken_outcome(opening, ignored)
        raise
    except IntegrityError:
        return _handle_unfinished_turn(opening, member, user_id, view, ignored)
    except DatabaseError as problem:
        lease.release_lease(session_id, str(opening.token))
        raise ServiceUnavailable from problem
    if opened is None and _is_still_pending(
        opening.message_id
    ):  # others go first, perhaps behind a paused turn
        given = _abandon_paused_turn(opening, member, user_id, view, ignored)
        if given is not None:
            return given
    return _announce_or_hand_over(opening, opened, member, user_id, view, ignored)


def _place_hold_if_needed(opening: turns.NewTurn, user_id: int) -> None:
    """Hold the turn's money, unless the first check could do so; raises TooMany when other turns hold the rest."""
    if not opening.held:
        place_hold(user_id, opening.turn_id)


def _is_still_pending(message_id: UUID) -> bool:
    return Message.objects.filter(pk=message_id, sequence=None, dropped_at=None).exists()


def _announce_or_hand_over(
    opening: turns.NewTurn,
    opened: turns.OpenedTurn | None,
    member: QueueMember,
    user_id: int,
    view: MessagePayload,
    ignored: list[str],
) -> SubmissionStarted | SubmissionQueued:
    if opened is None:  # an earlier turn took the message while this request was slow, or others go first
        lease.reorder_members(str(opening.session_id), {member: float(member.accept_number)})
        release_or_start_next(opening.session_id, opening.token, None)
        return build_outcome_of_message(Message.objects.get(pk=opening.message_id)) or build_taken_outcome(
            opening, ignored
        )
    cursor = announce_queued_turn(opening, opened, user_id, view)
    return SubmissionStarted(
        message_id=opening.message_id,
        turn_id=opening.turn_id,
        run_id=opening.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


# --- a turn that waits for a person ------------------------------------------------------------------


def _handle_unfinished_turn(
    opening: turns.NewTurn, member: QueueMember, user_id: int, view: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """A turn is unfinished on a session that nobody held: one that waits for a person, or one Redis forgot."""
    if (started := _abandon_paused_turn(opening, member, user_id, view, ignored)) is not None:
        return started
    lease.release_lease(str(opening.session_id), str(opening.token))
    paused = turn_transitions.get_paused_turn_id(opening.session_id)
    if paused is None:
        return None
    position = lease.enqueue_member(str(opening.session_id), member, float(member.accept_number))
    if position is None:
        return _refuse_full(opening, ignored)
    waiting = lease.QueuedBehindTurn(position=position, turn_id=str(paused))
    return _confirm_queued(opening, member, user_id, waiting, ignored)


def _abandon_paused_turn(
    opening: turns.NewTurn, member: QueueMember, user_id: int, view: MessagePayload, ignored: list[str]
) -> SubmissionStarted | SubmissionQueued | None:
    """The owner goes on instead of deciding; None when nothing waits for that, or others speak (A11.8)."""
    if not opening.of_owner or turn_transitions.get_paused_turn_id(opening.session_id) is None:
        return None
    try:
        _place_hold_if_needed(opening, user_id)
    except TooManyRequests:  # nothing of the message stays, and the turn waits as before (B7.1)
        lease.remove_members(str(opening.session_id), [member])
        lease.release_lease(str(opening.session_id), str(opening.token))
        if not messages.discard_pending_message(opening.message_id):
            return build_taken_outcome(opening, ignored)
        raise
    given = replace_paused_turn(opening, user_id)
    if given is None:
        return None
    lease.remove_members(str(opening.session_id), [member])
    return _announce_or_hand_over(opening, given.opened, member, user_id, view, ignored)


def _confirm_queued(
    opening: turns.NewTurn,
    member: QueueMember,
    user_id: int,
    waiting: lease.QueuedBehindTurn,
    ignored: list[str],
) -> SubmissionStarted | SubmissionQueued:
    # A channel full of people takes nothing of what its payer may say elsewhere (L8).
    who = str(user_id) if opening.of_owner else f"{user_id}:{opening.session_id}"
    wait = rate_limits.count_request(
        "queue", who, limit=REQUEST_LIMITS.queue_calls, seconds=REQUEST_LIMITS.queue_calls_seconds
    )
    if wait is not None and messages.discard_pending_message(opening.message_id):
        lease.remove_members(str(opening.session_id), [member])
        raise TooManyRequests("Too many messages in a short time.", retry_after_seconds=wait)
    flush_wal()
    running = UUID(waiting.turn_id)
    if _supersedes_question(opening):
        questions.close_questions_of_turn(running, "superseded")
    cursor = publish_events(opening.session_id, user_id, [(selectors.get_queue(opening.session_id), None)])
    return SubmissionQueued(
        message_id=opening.message_id,
        turn_id=running,
        run_id=opening.run_id,
        position=waiting.position,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _supersedes_question(opening: turns.NewTurn) -> bool:
    """Whether it can stand for an answer: its owner's, and delivered at the next boundary (A12.3, L14)."""
    return opening.of_owner and not any(one.run_id for one in queue.list_pending_messages(opening.session_id))


def _refuse_full(opening: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    if not messages.discard_pending_message(opening.message_id):
        return build_taken_outcome(
            opening, ignored
        )  # the running turn took it from the rows meanwhile: it is accepted
    raise TooManyRequests(
        f"{lease.QUEUE_CAPACITY} messages are waiting already.",
        code="queue_full",
        capacity=lease.QUEUE_CAPACITY,
    )
