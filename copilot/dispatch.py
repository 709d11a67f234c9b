"""A message arrives: start a turn, queue behind one, or refuse. A stop, an edit of the queue or an answer arrives: act."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError

from billing import errors as billing_errors
from billing import usage as billing_usage
from copilot import history, queries, questions, tasks, turns
from copilot.agent import prompt
from copilot.commands import LIMITS, SendMessage, checked_text
from copilot.errors import Conflict, Forbidden, InvalidRequest, NotFound, TooMany, TurnConflict, Unavailable
from copilot.events import (
    AttachmentView,
    Event,
    LimitReached,
    MessageAdded,
    MessageView,
    NoticePosted,
    QueueChanged,
    SessionChanged,
    SessionState,
    TurnCancelled,
    TurnQueued,
)
from copilot.live import counters, lease, stream
from copilot.live import stop as stops
from copilot.live.client import RedisDown
from copilot.live.lease import Member
from copilot.models import Message, Session, Turn
from copilot.permissions import Permissions
from copilot.providers import catalogue
from copilot.workspace import files

log = logging.getLogger(__name__)

TITLE_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Started:
    message_id: UUID
    turn_id: UUID
    run_id: str | None
    cursor: str
    ignored_attachments: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Queued:
    message_id: UUID
    turn_id: UUID  # the turn it waits behind
    run_id: str | None
    position: int
    cursor: str
    capacity: int = lease.QUEUE_CAPACITY
    ignored_attachments: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    turn_id: UUID | None
    state: Literal["stopping", "idle"]


# --- a message ---------------------------------------------------------------------------------------


def submit(command: SendMessage) -> Started | Queued:
    """The only way to talk to the agent, for every door (T3)."""
    catalogue.resolve(command.tier, command.mode)
    _check_limit(command.user_id)
    attachments, ignored = _resolve(command)
    message_id, turn_id, token = uuid4(), uuid4(), uuid4()
    context = prompt.server_context(
        now=datetime.now(UTC),
        timezone="UTC",
        page_url=command.page_context.url if command.page_context else "",
        page_text=command.page_context.text if command.page_context else "",
        attachments=attachments,
    )
    accepted = history.accept(message_id, command, attachments, context)
    if accepted is None:
        return _answer_again(command)
    number = accepted.accept_number
    member = Member(number, command.run_id is not None, str(message_id))
    opening = turns.Opening(
        turn_id=turn_id,
        token=token,
        session_id=command.session_id,
        message_id=message_id,
        origin=command.origin,
        run_id=command.run_id,
        tier=command.tier,
        mode=command.mode,
        permissions=command.permissions,
        accept_number=number,
        title=title_from(command.text),
    )
    view = _view(message_id, command, attachments)
    return _admit(opening, member, command.user_id, view, ignored)


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


def _check_limit(user_id: int) -> None:
    try:
        billing_usage.check(user_id)
    except billing_errors.LimitReached as reached:
        raise TooMany(
            reached.message,
            code=reached.code,
            retry_after_seconds=reached.retry_after_seconds(datetime.now(UTC)),
            **reached.details(),
        ) from reached


def _resolve(command: SendMessage) -> tuple[list[AttachmentView], list[str]]:
    if not command.attachments:
        return [], []
    attachments, ignored = files.resolve_attachments(command.user_id, command.attachments)
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
        verdict = _claim_or_queue(opening, member)
        match verdict:
            case lease.Claimed():
                started = _start(opening, user_id, view, ignored)
                if started is not None:
                    return started
                restore(opening.session_id)  # Redis had forgotten the turn that runs: queue behind it
            case lease.Waiting():
                return _queue(opening, member, user_id, verdict, ignored)
            case lease.Full():
                return _refuse_full(opening, ignored)
    raise Unavailable


def _claim_or_queue(opening: turns.Opening, member: Member) -> lease.Claimed | lease.Waiting | lease.Full:
    try:
        return lease.claim_or_queue(
            str(opening.session_id),
            turn_id=str(opening.turn_id),
            token=str(opening.token),
            member=member,
            order=float(member.accept_number),
        )
    except RedisDown as problem:
        history.discard(opening.message_id)
        raise Unavailable from problem


def _start(opening: turns.Opening, user_id: int, view: MessageView, ignored: list[str]) -> Started | None:
    """Open the turn on the claimed session; None when Postgres says one is unfinished there."""
    session_id = str(opening.session_id)
    try:
        opened = turns.open_turn(opening)
    except IntegrityError:
        lease.give_back(session_id, str(opening.token))
        return None
    except DatabaseError as problem:
        lease.give_back(session_id, str(opening.token))
        raise Unavailable from problem
    if opened is None:  # an earlier turn took the message while this request was slow: it is accepted
        after_turn(opening.session_id, opening.token, None)
        return _taken(opening, ignored)
    cursor = _announce(opening, opened, user_id, view)
    tasks.send(opening.turn_id)
    return Started(
        message_id=opening.message_id,
        turn_id=opening.turn_id,
        run_id=opening.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _announce(
    opening: turns.Opening,
    opened: turns.Opened,
    user_id: int,
    view: MessageView,
    *,
    queue_changed: bool = False,
) -> str:
    """Tell clients of a turn that waits for a worker."""
    turn_id = str(opening.turn_id)
    placed = replace(
        view, sequence=opened.sequence, turn_id=turn_id, created_at=queries.instant(opened.created_at)
    )
    happened: list[tuple[Event, str | None]] = [(MessageAdded(message=placed), turn_id)]
    if queue_changed:
        happened.append((QueueChanged(items=queries.queue_items(opening.session_id)), None))
    happened += [
        (TurnQueued(origin=opening.origin, run_ids=[opening.run_id] if opening.run_id else []), turn_id),
        (
            SessionChanged(
                title=opened.title, pinned=opened.pinned, archived=opened.archived, state="running"
            ),
            None,
        ),
    ]
    return _publish(opening.session_id, user_id, happened)


def _publish(session_id: UUID, user_id: int, happened: list[tuple[Event, str | None]]) -> str:
    """A failing log never undoes what is stored: clients catch up from the rows."""
    try:
        return stream.publish_now(str(session_id), happened, user_id=user_id)
    except RedisDown:
        log.warning("the event log is unreachable; clients will catch up from the rows")
        return stream.NO_CURSOR


def _queue(
    opening: turns.Opening, member: Member, user_id: int, waiting: lease.Waiting, ignored: list[str]
) -> Started | Queued:
    wait = counters.hit("queue", str(user_id), limit=LIMITS.queue_calls, seconds=LIMITS.queue_calls_seconds)
    if wait is not None and history.discard(opening.message_id):
        lease.forget(str(opening.session_id), [member])
        raise TooMany("Too many messages in a short time.", retry_after_seconds=wait)
    running = UUID(waiting.turn_id)
    questions.close_for_turn(running, "superseded")
    items = queries.queue_items(opening.session_id)
    cursor = _publish(opening.session_id, user_id, [(QueueChanged(items=items), None)])
    return Queued(
        message_id=opening.message_id,
        turn_id=running,
        run_id=opening.run_id,
        position=waiting.position,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _refuse_full(opening: turns.Opening, ignored: list[str]) -> Started:
    if not history.discard(opening.message_id):
        return _taken(opening, ignored)  # the running turn took it from the rows meanwhile: it is accepted
    raise TooMany(
        f"{lease.QUEUE_CAPACITY} messages are waiting already.",
        code="queue_full",
        capacity=lease.QUEUE_CAPACITY,
    )


def _taken(opening: turns.Opening, ignored: list[str]) -> Started:
    turn_id = Message.objects.values_list("turn_id", flat=True).get(pk=opening.message_id)
    return Started(
        message_id=opening.message_id,
        turn_id=turn_id or opening.turn_id,
        run_id=opening.run_id,
        cursor=stream.last_cursor(str(opening.session_id)),
        ignored_attachments=ignored,
    )


# --- the same run_id again ---------------------------------------------------------------------------

SETTLE_SECONDS = 2.0  # the first request with this run_id decides within milliseconds


def _answer_again(command: SendMessage) -> Started | Queued:
    """Why nothing was inserted: a foreign session, an inactive account, or a run_id seen before (T3.6)."""
    session = Session.objects.filter(pk=command.session_id, owner=command.user_id, deleted_at=None)
    if not session.exists():
        raise NotFound
    if not session.filter(owner__is_active=True).exists():
        raise Forbidden("This account is not active.", code="account_inactive")
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        first = Message.objects.filter(session=command.session_id, run_id=command.run_id).first()
        if first is None:
            return submit(command)  # the first request was refused meanwhile
        if first.content != command.text:
            raise Conflict("This run_id was used with another text.", code="idempotency_conflict")
        if (outcome := _outcome_of(first)) is not None:
            return outcome
        time.sleep(0.01)
    raise Unavailable


def _outcome_of(message: Message) -> Started | Queued | None:
    cursor = stream.last_cursor(str(message.session_id))
    if message.dropped_at is not None:
        turn_id = Turn.objects.filter(session=message.session_id, run_ids__contains=[message.run_id]).first()
        return Started(
            message_id=message.pk,
            turn_id=turn_id.pk if turn_id else uuid4(),
            run_id=message.run_id,
            cursor=cursor,
        )
    if message.turn_id is not None:
        return Started(message_id=message.pk, turn_id=message.turn_id, run_id=message.run_id, cursor=cursor)
    waiting = [item for item in queries.queue_items(message.session_id) if item.id == str(message.pk)]
    running = Turn.objects.filter(session=message.session_id, status__in=Turn.UNFINISHED).first()
    if not waiting or running is None:
        return None
    return Queued(
        message_id=message.pk,
        turn_id=running.pk,
        run_id=message.run_id,
        position=waiting[0].position,
        cursor=cursor,
    )


# --- after a turn ------------------------------------------------------------------------------------


def after_turn(session_id: UUID, token: UUID, keep_through: int | None) -> None:
    """The last act of a turn: let the session go, or start what must follow at once (T4.4, T6.3, T7.4)."""
    while True:
        next_turn, next_token = uuid4(), uuid4()
        verdict = lease.take_or_release(
            str(session_id),
            token=str(token),
            keep_through=keep_through,
            next_turn_id=str(next_turn),
            next_token=str(next_token),
        )
        if verdict != "kept" or _start_next(session_id, next_turn, next_token, keep_through):
            return
        token = next_token


def _start_next(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> bool:
    """Open a turn for the head of the queue; False when the queue turned out to hold nothing to start."""
    pending = history.pending(session_id)
    head = next(
        (one for one in pending if one.run_id or keep_through is None or one.accept_number > keep_through),
        None,
    )
    if head is None:
        restore_queue(session_id, pending)
        return False
    owner_id = _owner_of(session_id)
    if not _may_go_on(session_id, owner_id, len(pending)):
        lease.give_back(str(session_id), str(token))
        return True
    message = Message.objects.get(pk=head.id)
    opening = turns.Opening(
        turn_id=turn_id,
        token=token,
        session_id=session_id,
        message_id=head.id,
        origin=message.origin,
        run_id=head.run_id,
        tier=message.tier,
        mode=message.mode,
        permissions=Permissions.from_json(head.permissions),
        accept_number=head.accept_number,
    )
    try:
        opened = turns.open_turn(opening)
    except IntegrityError:
        lease.give_back(str(session_id), str(token))
        return True  # another turn is unfinished here: what is queued waits behind it
    lease.forget(str(session_id), [_member(head)])
    if opened is None:
        return False
    _announce(opening, opened, owner_id, queries.message_view(message), queue_changed=True)
    tasks.send(turn_id)
    return True


def _owner_of(session_id: UUID) -> int:
    return Session.objects.values_list("owner_id", flat=True).get(pk=session_id)


def _may_go_on(session_id: UUID, owner_id: int, waiting: int) -> bool:
    """Whether the owner's limit lets queued messages start; if not, they stay and clients are told (B7)."""
    try:
        billing_usage.check(owner_id)
    except billing_errors.LimitReached as reached:
        told = LimitReached(
            window=reached.window, resets_at=queries.instant(reached.resets_at), queued=waiting
        )
        _publish(session_id, owner_id, [(told, None)])
        return False
    return True


def _member(one: history.Pending) -> Member:
    return Member(one.accept_number, one.run_id is not None, str(one.id))


def start_stranded(session_id: UUID) -> bool:
    """Start a turn for messages that wait although nothing runs (D10)."""
    turn_id, token = uuid4(), uuid4()
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(turn_id), token=str(token), member=None, order=0.0
    )
    if not isinstance(verdict, lease.Claimed):
        return False
    restore_queue(session_id, history.pending(session_id))
    after_turn(session_id, token, None)
    return True


# --- rebuilding Redis from Postgres ------------------------------------------------------------------


def restore(session_id: UUID) -> None:
    """Put back what Redis lost: the lease of the unfinished turn and the working order of the queue (T2.5)."""
    turn = Turn.objects.filter(session=session_id, status__in=Turn.UNFINISHED).first()
    if turn is not None:
        lease.claim_or_queue(
            str(session_id), turn_id=str(turn.pk), token=str(turn.token), member=None, order=0.0
        )
    restore_queue(session_id, history.pending(session_id))


def restore_queue(session_id: UUID, pending: list[history.Pending]) -> None:
    lease.restore_queue(str(session_id), {_member(one): one.queue_order for one in pending})


# --- stop --------------------------------------------------------------------------------------------


def stop(
    user_id: int, session_id: UUID, *, queue: Literal["keep", "drop"] = "keep", turn_id: UUID | None = None
) -> Stopped:
    """Stop what the session accepted before now; a message accepted later is never affected (T7)."""
    queries.session_of(user_id, session_id)
    stopping = turns.request_stop(session_id, turn_id)
    if queue == "drop":
        drop_queue(session_id, stopping.through if stopping else None)
    if stopping is None:
        return Stopped(turn_id=None, state="idle")
    if stopping.status != Turn.Status.RUNNING and cancel_unstarted(session_id, stopping):
        return Stopped(turn_id=stopping.turn_id, state="stopping")
    try:
        stops.raise_mark(str(session_id), str(stopping.turn_id))
    except RedisDown:
        log.warning("the stop of turn %s could not be broadcast; the sweep will end it", stopping.turn_id)
    return Stopped(turn_id=stopping.turn_id, state="stopping")


def cancel_unstarted(session_id: UUID, stopping: turns.Stopping) -> bool:
    """End a turn that no worker runs, in the request itself; False when a worker was quicker."""
    try:
        ended = turns.end(stopping.turn_id, stopping.fence, turns.CANCELLED, reason="user")
    except TurnConflict:
        return False
    announce_cancelled(session_id, stopping.turn_id, ended)
    after_turn(session_id, stopping.token, ended.stop_through)
    return True


def announce_cancelled(session_id: UUID, turn_id: UUID, ended: turns.Ended) -> None:
    """The notice and the ending of a turn that was stopped without its worker."""
    notice_id = history.post_notice(session_id, turn_id, "stopped")
    happened: list[tuple[Event, str | None]] = [
        (notice_posted(notice_id, "stopped"), str(turn_id)),
        (TurnCancelled(run_ids=ended.run_ids, reason="user"), str(turn_id)),
        (_changed(ended, "idle"), None),
    ]
    _publish(session_id, _owner_of(session_id), happened)


def notice_posted(row_id: UUID, code: str) -> NoticePosted:
    [message] = queries.views([row_id])
    content = queries.notice_content(code)
    return NoticePosted(
        row_id=str(row_id),
        code=code,
        label=content.label,
        hint=content.hint,
        action=content.action,
        details=content.details,
        message=message,
    )


def _changed(ended: turns.Ended, state: SessionState) -> SessionChanged:
    return SessionChanged(title=ended.title, pinned=ended.pinned, archived=ended.archived, state=state)


def drop_queue(session_id: UUID, through: int | None, message_id: UUID | None = None) -> None:
    """Let queued messages go; each run_id among them gets its cancelled ending (T3.6, T7.4)."""
    dropped = history.drop_pending(session_id, through=through, message_id=message_id)
    if not dropped:
        if message_id is not None:
            raise Conflict("This message is no longer queued.", code="not_queued")
        return
    lease.forget(str(session_id), [_member(one) for one in dropped])
    happened: list[tuple[Event, str | None]] = [(QueueChanged(items=queries.queue_items(session_id)), None)]
    for one in dropped:
        if one.run_id:
            message = Message.objects.get(pk=one.id)
            ended = turns.record_dropped(
                session_id,
                one.run_id,
                message.origin,
                Permissions.from_json(message.permissions),
                one.accept_number,
            )
            happened.append((TurnCancelled(run_ids=[one.run_id], reason="user"), str(ended)))
    _publish(session_id, _owner_of(session_id), happened)


# --- the queue, by hand (T6.5) -----------------------------------------------------------------------


def edit_queued(user_id: int, session_id: UUID, message_id: UUID, text: str) -> None:
    queries.session_of(user_id, session_id)
    text = checked_text(text)
    if not text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    if not history.edit_pending(session_id, message_id, text):
        raise _not_queued(session_id, message_id)
    _publish_queue(session_id)


def remove_queued(user_id: int, session_id: UUID, message_id: UUID) -> None:
    queries.session_of(user_id, session_id)
    if not Message.objects.filter(pk=message_id, session=session_id).exists():
        raise NotFound
    drop_queue(session_id, None, message_id)


def move_queued(user_id: int, session_id: UUID, message_id: UUID, position: int) -> None:
    """Put a queued message at a place of the queue, counted from 1."""
    queries.session_of(user_id, session_id)
    pending = history.pending(session_id)
    moved = next((one for one in pending if one.id == message_id), None)
    if moved is None:
        raise _not_queued(session_id, message_id)
    others = [one for one in pending if one.id != message_id]
    others.insert(max(0, position - 1), moved)
    orders = dict(zip((one.id for one in others), sorted(one.queue_order for one in pending), strict=True))
    history.order_pending(orders)
    lease.reorder(str(session_id), {_member(one): orders[one.id] for one in others})
    _publish_queue(session_id)


def send_now(user_id: int, session_id: UUID, message_id: UUID) -> Stopped:
    """Interrupt: stop what runs, keep its partial answer, and go on with this message at once (T6.5)."""
    queries.session_of(user_id, session_id)
    _check_limit(user_id)
    pending = history.pending(session_id)
    chosen = next((one for one in pending if one.id == message_id), None)
    if chosen is None:
        raise _not_queued(session_id, message_id)
    stopping = turns.request_stop(session_id)
    first = min(one.queue_order for one in pending) - 1.0
    number = history.accept_again(message_id, first)
    if number is None:
        raise _not_queued(session_id, message_id)
    again = Member(number, chosen.run_id is not None, str(message_id))
    lease.forget(str(session_id), [_member(chosen)])
    lease.reorder(str(session_id), {again: first})
    _publish_queue(session_id)
    if stopping is None:
        start_stranded(session_id)
        return Stopped(turn_id=None, state="idle")
    if stopping.status == Turn.Status.RUNNING or not cancel_unstarted(session_id, stopping):
        stops.raise_mark(str(session_id), str(stopping.turn_id))
    return Stopped(turn_id=stopping.turn_id, state="stopping")


def _not_queued(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is no longer queued.", code="not_queued")
    return NotFound()


def _publish_queue(session_id: UUID) -> None:
    _publish(session_id, _owner_of(session_id), [(QueueChanged(items=queries.queue_items(session_id)), None)])


# --- an answer ---------------------------------------------------------------------------------------


def answer_question(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> None:
    """A person answers what the agent asked; the waiting turn reads it from the row (A12)."""
    questions.answer(user_id, question_id, text=text, choice=choice)
