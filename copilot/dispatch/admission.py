"""A message arrives: start a turn, queue behind one, or refuse, decided atomically (T3)."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError

from copilot import history, memories, presets, queries, questions, traces, turns
from copilot.agent import prompt
from copilot.commands import LIMITS, PageContext, SendMessage
from copilot.dispatch.answers import Queued, Started
from copilot.dispatch.choosing import choose
from copilot.dispatch.continuing import give_way
from copilot.dispatch.families import room_for
from copilot.dispatch.following import after_turn, restore
from copilot.dispatch.limits import admit, check_and_hold, let_go
from copilot.dispatch.outages import AWAY, accepted_or_refused, taken
from copilot.dispatch.repetition import first_outcome, outcome_of
from copilot.dispatch.telling import announce, publish
from copilot.errors import InvalidRequest, TooMany, Unavailable
from copilot.events import AttachmentView, MessageView
from copilot.lasting import settle
from copilot.live import counters, lease
from copilot.live.lease import Member
from copilot.models import Message
from copilot.workspace import files

log = logging.getLogger(__name__)

TITLE_CHARACTERS = 60


def submit(command: SendMessage) -> Started | Queued:
    """The only way to talk to the agent, for every door (T3)."""
    with traces.span("dispatch", session_id=str(command.session_id), origin=command.origin) as span:
        outcome = _submit(command)
        span.note(queued=isinstance(outcome, Queued))
        return outcome


def _submit(command: SendMessage) -> Started | Queued:
    command = choose(command)
    turn_id = uuid4()
    try:
        held = check_and_hold(command.user_id, turn_id)
    except TooMany:
        queries.session_of(
            command.user_id, command.session_id
        )  # a foreign one is not there, limit or not (B7.1)
        if command.run_id is None or (first := first_outcome(command)) is None:
            raise
        return first  # it was accepted before the limit was reached
    with ExitStack() as unused:
        unused.callback(let_go, command.user_id, turn_id)
        outcome = _place(command, turn_id, held=held)
        if outcome is not None and outcome.turn_id == turn_id:
            unused.pop_all()  # the turn is open: its worker lets go of the hold
    return outcome or first_outcome(command) or _submit(command)


def _place(command: SendMessage, turn_id: UUID, *, held: bool) -> Started | Queued | None:
    """Store the message and start or queue it; None: nothing was stored, because its run_id is taken or the session is not the user's."""
    attachments, ignored = _resolve(command)
    message_id = uuid4()
    opening = turns.Opening(
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
        title=title_from(command.text),
        parent=command.parent.turn_id if command.parent else None,
        budget=command.parent.budget_microdollars if command.parent else 0,
        of_owner=command.of_owner,
        held=held,
    )
    try:
        return _accept(opening, command, attachments, ignored)
    except AWAY:
        return accepted_or_refused(opening, ignored)


def _accept(
    opening: turns.Opening, command: SendMessage, attachments: list[AttachmentView], ignored: list[str]
) -> Started | Queued | None:
    """The row first, then its place: a turn of its own, or one in the queue; None without a row."""
    message_id = opening.message_id
    page = command.page_context or PageContext()
    context = prompt.server_context(
        sent=history.SENT,
        speaker=command.author if command.arrival.reply else "",
        page_url=page.url,
        page_text=page.text,
        attachments=attachments,
    )
    with room_for(command):
        accepted = history.accept(message_id, command, attachments, context, lasting=False)
    if accepted is None:
        return None
    if accepted.recalls and command.permissions.memory:
        recall(message_id, command)
    if accepted.builds is not None:
        history.add_context(message_id, presets.builder_context(command.user_id, accepted.builds))
    number = accepted.accept_number
    member = Member(number, command.run_id is not None, str(message_id))
    view = _view(message_id, command, attachments)
    return _admit(replace(opening, accept_number=number), member, command.user_id, view, ignored)


def recall(message_id: UUID, command: SendMessage) -> None:
    """What is known of the user goes with a session's first message, judged before any is merged (A25.2)."""
    warm = memories.warm(command.user_id, command.text)
    if not warm.text:
        return
    try:
        history.add_context(message_id, warm.text, sources=warm.sources)
    except DatabaseError:
        log.warning("memories could not be added to a message; it goes without them")


def _view(message_id: UUID, command: SendMessage, attachments: list[AttachmentView]) -> MessageView:
    """The message as clients will see it, once it has its place."""
    return MessageView(
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


def _resolve(command: SendMessage) -> tuple[list[AttachmentView], list[str]]:
    if not command.attachments:
        return [], []
    alone = (
        command.session_id if command.arrival.reply else None
    )  # who speaks there need not be the owner (L12)
    attachments, ignored = files.resolve_attachments(command.user_id, command.attachments, session_id=alone)
    if not attachments and not command.text.strip():
        raise InvalidRequest("The message is empty: none of its files can be used.", code="empty_message")
    return attachments, ignored


def title_from(text: str) -> str:
    """A conversation is called after its first words until something better is known."""
    words = " ".join(text.split())
    return words if len(words) <= TITLE_CHARACTERS else words[: TITLE_CHARACTERS - 1].rstrip() + "…"


def _admit(
    opening: turns.Opening, member: Member, user_id: int, view: MessageView, ignored: list[str]
) -> Started | Queued:
    for _ in range(2):
        verdict = lease.claim_or_queue(
            str(opening.session_id),
            turn_id=str(opening.turn_id),
            token=str(opening.token),
            member=member,
            order=float(member.accept_number),
        )
        match verdict:
            case lease.Claimed():
                started = _start(opening, member, user_id, view, ignored)
                if started is not None:
                    return started
                restore(opening.session_id)  # Redis had forgotten the turn that runs: queue behind it
            case lease.Waiting():
                return _give_way(opening, member, user_id, view, ignored) or _queue(
                    opening, member, user_id, verdict, ignored
                )
            case lease.Full():
                return _refuse_full(opening, ignored)
    raise Unavailable


def _start(
    opening: turns.Opening, member: Member, user_id: int, view: MessageView, ignored: list[str]
) -> Started | Queued | None:
    """Open the turn on the claimed session; None when Postgres says one is unfinished there."""
    session_id = str(opening.session_id)
    try:
        _hold(opening, user_id)
        opened = turns.open_turn(opening)
    except TooMany:
        lease.give_back(session_id, str(opening.token))
        if not history.discard(opening.message_id):
            return taken(opening, ignored)
        raise
    except IntegrityError:
        return _beside(opening, member, user_id, view, ignored)
    except DatabaseError as problem:
        lease.give_back(session_id, str(opening.token))
        raise Unavailable from problem
    if opened is None and _still_waits(opening.message_id):  # others go first, perhaps behind a paused turn
        given = _give_way(opening, member, user_id, view, ignored)
        if given is not None:
            return given
    return _opened(opening, opened, member, user_id, view, ignored)


def _hold(opening: turns.Opening, user_id: int) -> None:
    """Hold the turn's money, unless the first check could do so; raises TooMany when other turns hold the rest."""
    if not opening.held:
        admit(user_id, opening.turn_id)


def _still_waits(message_id: UUID) -> bool:
    return Message.objects.filter(pk=message_id, sequence=None, dropped_at=None).exists()


def _opened(
    opening: turns.Opening,
    opened: turns.Opened | None,
    member: Member,
    user_id: int,
    view: MessageView,
    ignored: list[str],
) -> Started | Queued:
    if opened is None:  # an earlier turn took the message while this request was slow, or others go first
        lease.reorder(str(opening.session_id), {member: float(member.accept_number)})
        after_turn(opening.session_id, opening.token, None)
        return outcome_of(Message.objects.get(pk=opening.message_id)) or taken(opening, ignored)
    cursor = announce(opening, opened, user_id, view)
    return Started(
        message_id=opening.message_id,
        turn_id=opening.turn_id,
        run_id=opening.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


# --- a turn that waits for a person ------------------------------------------------------------------


def _beside(
    opening: turns.Opening, member: Member, user_id: int, view: MessageView, ignored: list[str]
) -> Started | Queued | None:
    """A turn is unfinished on a session that nobody held: one that waits for a person, or one Redis forgot."""
    if (started := _give_way(opening, member, user_id, view, ignored)) is not None:
        return started
    lease.give_back(str(opening.session_id), str(opening.token))
    paused = turns.waiting_on(opening.session_id)
    if paused is None:
        return None
    position = lease.queue_up(str(opening.session_id), member, float(member.accept_number))
    if position is None:
        return _refuse_full(opening, ignored)
    waiting = lease.Waiting(position=position, turn_id=str(paused))
    return _queue(opening, member, user_id, waiting, ignored)


def _give_way(
    opening: turns.Opening, member: Member, user_id: int, view: MessageView, ignored: list[str]
) -> Started | Queued | None:
    """The owner goes on instead of deciding; None when nothing waits for that, or others speak (A11.8)."""
    if not opening.of_owner or turns.waiting_on(opening.session_id) is None:
        return None
    try:
        _hold(opening, user_id)
    except TooMany:  # nothing of the message stays, and the turn waits as before (B7.1)
        lease.forget(str(opening.session_id), [member])
        lease.give_back(str(opening.session_id), str(opening.token))
        if not history.discard(opening.message_id):
            return taken(opening, ignored)
        raise
    given = give_way(opening, user_id)
    if given is None:
        return None
    lease.forget(str(opening.session_id), [member])
    return _opened(opening, given.opened, member, user_id, view, ignored)


def _queue(
    opening: turns.Opening, member: Member, user_id: int, waiting: lease.Waiting, ignored: list[str]
) -> Started | Queued:
    # A channel full of people takes nothing of what its payer may say elsewhere (L8).
    who = str(user_id) if opening.of_owner else f"{user_id}:{opening.session_id}"
    wait = counters.hit("queue", who, limit=LIMITS.queue_calls, seconds=LIMITS.queue_calls_seconds)
    if wait is not None and history.discard(opening.message_id):
        lease.forget(str(opening.session_id), [member])
        raise TooMany("Too many messages in a short time.", retry_after_seconds=wait)
    settle()
    running = UUID(waiting.turn_id)
    if _follows(opening):
        questions.close_for_turn(running, "superseded")
    cursor = publish(opening.session_id, user_id, [(queries.queue_now(opening.session_id), None)])
    return Queued(
        message_id=opening.message_id,
        turn_id=running,
        run_id=opening.run_id,
        position=waiting.position,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _follows(opening: turns.Opening) -> bool:
    """Whether it can stand for an answer: its owner's, and delivered at the next boundary (A12.3, L14)."""
    return opening.of_owner and not any(one.run_id for one in history.pending(opening.session_id))


def _refuse_full(opening: turns.Opening, ignored: list[str]) -> Started:
    if not history.discard(opening.message_id):
        return taken(opening, ignored)  # the running turn took it from the rows meanwhile: it is accepted
    raise TooMany(
        f"{lease.QUEUE_CAPACITY} messages are waiting already.",
        code="queue_full",
        capacity=lease.QUEUE_CAPACITY,
    )
