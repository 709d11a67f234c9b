"""Versions of what was said, and turns taken back: rows are hidden and shown again, never rewritten (A30.5, A30.6)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Max, QuerySet, Subquery
from django.db.models.functions import Coalesce

from config.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from copilot.agent import model_context, system_prompt
from copilot.agents import services as agents
from copilot.chat import messages, selectors, turns
from copilot.chat.admission import add_memories_to_context
from copilot.chat.admission_limits import apply_plan_to_message, check_usage_limit, place_hold, release_hold
from copilot.chat.admission_outcomes import SubmissionStarted
from copilot.chat.announcements import announce_queued_turn, publish_snapshot
from copilot.chat.commands import PageContext, ResendMessage, SendMessage
from copilot.chat.idempotency import FIRST_OUTCOME_TIMEOUT_SECONDS, replay_first_outcome
from copilot.chat.session_lock import (
    LOCK_POLL_SECONDS,
    SessionLock,
    build_session_busy_error,
    lock_idle_session,
)
from copilot.chat.stop import pause_active_goal, stop_session
from copilot.files import services as files
from copilot.models import Message, Turn
from copilot.realtime import event_log
from copilot.realtime.payloads import AttachmentPayload

OLDER_BRANCH, UNDONE = Message.Hidden.OLDER_BRANCH, Message.Hidden.UNDONE


def shown_messages(session_id: UUID) -> QuerySet[Message]:
    return Message.objects.filter(session=session_id, hidden="", sequence__isnull=False)


def has_no_shown_messages(session_id: UUID) -> bool:
    """Nothing is shown: what is said next is the first that the model reads."""
    return not shown_messages(session_id).exists()


def get_addressed_message(session_id: UUID, message_id: UUID) -> Message:
    """What the user said to get this row: the row itself, or the last message before it."""
    place = shown_messages(session_id).filter(pk=message_id).values("sequence")
    before = (
        shown_messages(session_id).filter(kind="user", sequence__lte=Subquery(place)).order_by("-sequence")
    )
    said = before.first()  # one statement: what it finds was shown together with the row
    if said is None:
        raise _build_not_shown_error(session_id, message_id)
    return said


def _build_not_shown_error(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is not shown any more.", code="not_shown")
    return NotFound()


def store_new_version(session_id: UUID, message_id: UUID, version_id: UUID) -> None:
    """A pending message becomes the next version of one that is shown; what followed that one is kept under it.

    The caller holds the session, and gives the version its place in the same transaction.
    """
    first = Message.objects.filter(pk=message_id, session=session_id, hidden="").values_list(
        Coalesce("version_of", "id"), "sequence"
    )
    found = first.first()
    if found is None:
        raise _build_not_shown_error(session_id, message_id)
    root, sequence = found
    Message.objects.filter(pk=message_id, version_of=None).update(version_of=root)
    last = Message.objects.filter(version_of=root).aggregate(last=Max("branch"))["last"]
    Message.objects.filter(pk=version_id).update(version_of=root, branch=last + 1)
    _hide_as_older_branch(session_id, message_id, sequence)


def _hide_as_older_branch(session_id: UUID, version_id: UUID, sequence: int) -> None:
    """The shown rows from a version on are its branch: they wait under it."""
    shown_messages(session_id).filter(sequence__gte=sequence).update(
        hidden=OLDER_BRANCH, kept_under=version_id
    )


@dataclass(frozen=True, kw_only=True)
class SwitchedVersion:
    message_id: UUID
    branch: int


def show_version(session_id: UUID, message_id: UUID, branch: int) -> SwitchedVersion:
    """Show another version of a shown message, with all that followed it when it was left."""
    with transaction.atomic():
        left = shown_messages(session_id).filter(pk=message_id, kind="user").first()
        if left is None or left.sequence is None:
            raise _build_not_shown_error(session_id, message_id)
        if left.branch == branch:
            return SwitchedVersion(message_id=left.pk, branch=branch)
        chosen = None
        if left.version_of is not None:
            versions = Message.objects.filter(version_of=left.version_of, hidden=OLDER_BRANCH)
            chosen = versions.filter(branch=branch).first()
        if chosen is None:
            raise Conflict("There is no such version of this message.", code="no_such_branch")
        _hide_as_older_branch(session_id, left.pk, left.sequence)
        Message.objects.filter(kept_under=chosen.pk).update(hidden="", kept_under=None)
    return SwitchedVersion(message_id=chosen.pk, branch=branch)


@dataclass(frozen=True, kw_only=True)
class HiddenTurn:
    turn_id: UUID | None
    text: str  # what the user had said in it
    rows: int


def hide_last_turn(session_id: UUID) -> HiddenTurn:
    """Hide the last turn that is shown, and whatever came after it: a summary of it is void too (A30.5)."""
    with transaction.atomic():
        last = shown_messages(session_id).filter(kind="user").order_by("-sequence").first()
        if last is None:
            raise Conflict("There is nothing to undo.", code="nothing_to_undo")
        begin = shown_messages(session_id).filter(turn=last.turn_id).order_by("sequence").first() or last
        taken = shown_messages(session_id).filter(sequence__gte=begin.sequence)
        said = taken.filter(kind="user").order_by("sequence").values_list("content", flat=True)
        text = "\n\n".join(said)
        rows = taken.update(hidden=UNDONE)
    return HiddenTurn(turn_id=last.turn_id, text=text, rows=rows)


# MERGED dispatch.branching: Another version of what was said: edit and resend, retry, switch (A30.6).


def resend_message(command: ResendMessage) -> SubmissionStarted:
    """Start a turn with another version of a message; rows from the first one on become an older branch.

    Without a text it is a retry. The original's files go with it, as far as they still exist.
    """
    selectors.get_session(command.user_id, command.session_id)
    if (first := _replay_first_resend(command)) is not None:
        return first
    try:
        return _resend_once(command)
    except Conflict as conflict:  # perhaps with the same request, sent twice
        if (
            first := _wait_for_twin_outcome(
                command, deciding=conflict.code == build_session_busy_error().code
            )
        ) is not None:
            return first
        raise


def _resend_once(command: ResendMessage) -> SubmissionStarted:
    original = get_addressed_message(command.session_id, command.message_id)
    if command.text is not None and original.pk != command.message_id:
        raise InvalidRequest("Only what a person said can be edited.")
    message = apply_plan_to_message(_build_repeated_message(command, original))
    check_usage_limit(command.user_id)
    attachments, ignored = files.resolve_attachments(command.user_id, message.attachments)
    if not attachments and not message.text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    with ExitStack() as stack:
        held = lock_idle_session(command.session_id)
        stack.callback(held.release)
        started = _start_version_turn(held, original.pk, message, attachments, ignored)
        stack.pop_all()  # the turn has the session now
    return started


def _build_repeated_message(command: ResendMessage, original: Message) -> SendMessage:
    context = original.page_context
    return SendMessage(
        session_id=command.session_id,
        user_id=command.user_id,
        text=original.content if command.text is None else command.text,
        attachments=tuple(one["file_id"] for one in original.attachments),
        page_context=PageContext(**context) if context else None,
        tier=command.tier or original.tier,
        mode=command.mode or original.mode,
        run_id=command.run_id,
        origin=command.origin,
        permissions=command.permissions,
        author=original.author,
    )


def _wait_for_twin_outcome(command: ResendMessage, *, deciding: bool) -> SubmissionStarted | None:
    """The outcome of the same request, which may still be on its way to one: the session is held, and no turn has begun."""
    deadline = time.monotonic() + FIRST_OUTCOME_TIMEOUT_SECONDS
    while True:
        over = not deciding or command.run_id is None or time.monotonic() > deadline
        over = over or Turn.objects.filter(session=command.session_id, status__in=Turn.UNFINISHED).exists()
        if (first := _replay_first_resend(command)) is not None or over:
            return first
        time.sleep(LOCK_POLL_SECONDS)


def _replay_first_resend(command: ResendMessage) -> SubmissionStarted | None:
    """The outcome of an earlier request with this run_id, if there was one; what it changed is no longer shown (T3.6)."""
    if command.run_id is None:
        return None
    versions = Message.objects.filter(session=command.session_id, run_id=command.run_id)
    said = versions.values_list("content", flat=True).first()
    if said is None:
        return None
    repeated = SendMessage(
        session_id=command.session_id,
        user_id=command.user_id,
        text=said if command.text is None else command.text,
        run_id=command.run_id,
        origin=command.origin,
        permissions=command.permissions,
    )
    outcome = replay_first_outcome(repeated)
    if outcome is None or isinstance(outcome, SubmissionStarted):
        return outcome
    raise build_session_busy_error()


def _start_version_turn(
    held: SessionLock,
    original_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentPayload],
    ignored: list[str],
) -> SubmissionStarted:
    message_id = uuid4()
    place_hold(message.user_id, held.turn_id)
    try:
        opening, opened = _open_version_turn(held, original_id, message_id, message, attachments)
    except IntegrityError as problem:  # somebody else's turn is unfinished here
        release_hold(message.user_id, held.turn_id)
        raise build_session_busy_error() from problem
    except DatabaseError as problem:
        release_hold(message.user_id, held.turn_id)
        raise ServiceUnavailable from problem
    system_prompt.record_cache_break("edit", held.session_id)
    publish_snapshot(held.session_id)  # before a worker wakes: in the log it would undo its first words
    [view] = selectors.serialize_messages_by_id([message_id])
    cursor = announce_queued_turn(opening, opened, message.user_id, view, queue_changed=True)
    return SubmissionStarted(
        message_id=message_id,
        turn_id=held.turn_id,
        run_id=message.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _open_version_turn(
    held: SessionLock,
    original_id: UUID,
    message_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentPayload],
) -> tuple[turns.NewTurn, turns.OpenedTurn]:
    """Row, branch and turn in one transaction: a refusal leaves the conversation as it was."""
    page = message.page_context or PageContext()
    context = model_context.build_message_context(
        sent=messages.SENT_TIME_PLACEHOLDER, page_url=page.url, page_text=page.text, attachments=attachments
    )
    with transaction.atomic():
        accepted = messages.insert_message(message_id, message, attachments, context)
        if accepted is None:
            replay_first_outcome(
                message
            )  # says why: no such session, an inactive account, a run_id used before
            raise build_session_busy_error()
        opening = turns.NewTurn(
            turn_id=held.turn_id,
            token=held.token,
            session_id=held.session_id,
            message_id=message_id,
            origin=message.origin,
            run_id=message.run_id,
            tier=message.tier,
            mode=message.mode,
            permissions=message.permissions,
            accept_number=accepted.accept_number,
        )
        store_new_version(held.session_id, original_id, message_id)
        if has_no_shown_messages(held.session_id):  # what is said now is the first that the model reads
            if messages.may_include_user_context(message):
                messages.add_user_context(message_id, message.user_id)
            if message.permissions.memory:
                add_memories_to_context(message_id, message)
        if accepted.built_agent_id is not None:
            messages.append_server_context(
                message_id, agents.build_builder_context(message.user_id, accepted.built_agent_id)
            )
        opened = turns.open_turn(opening)
        if opened is None:  # an earlier message waits that needs a turn of its own
            raise build_session_busy_error()
    return opening, opened


@dataclass(frozen=True, kw_only=True)
class BranchSwitchResult:
    message_id: UUID
    branch: int
    versions: int
    cursor: str


def switch_branch(user_id: int, session_id: UUID, message_id: UUID, branch: int) -> BranchSwitchResult:
    """Another version becomes the shown and continued one, in every open tab."""
    selectors.get_session(user_id, session_id)
    held = lock_idle_session(session_id)
    try:
        switched = show_version(session_id, message_id, branch)
        system_prompt.record_cache_break("edit", session_id)
        publish_snapshot(session_id)
        cursor = event_log.get_last_cursor(str(session_id))
    finally:
        held.release()
    [view] = selectors.serialize_messages_by_id([switched.message_id])
    return BranchSwitchResult(
        message_id=switched.message_id, branch=switched.branch, versions=view.versions, cursor=cursor
    )


# MERGED dispatch.undoing: The last turn, taken back (A30.5).

UNDO_NOTICE = (
    "The last turn is out of the conversation. "
    "What its tools did outside of it — files, messages, purchases — is not undone."
)


@dataclass(frozen=True, kw_only=True)
class UndoResult:
    turn_id: UUID | None
    text: str  # what the user had said in it
    message: str
    cursor: str


def undo_last_turn(user_id: int, session_id: UUID) -> UndoResult:
    """Rows of the last shown turn are marked undone and kept; a turn that waits for approval is cancelled first."""
    session = selectors.get_session(user_id, session_id)
    paused = Turn.objects.filter(session=session_id, status=Turn.Status.WAITING).first()
    if paused is not None:
        stop_session(user_id, session_id, turn_id=paused.pk)
    held = lock_idle_session(session_id)
    try:
        undone = hide_last_turn(session_id)
        system_prompt.record_cache_break("undo", session_id)
        if session.goal_state == session.Goal.ACTIVE:
            pause_active_goal(user_id, session_id, "The last turn was undone.")
        publish_snapshot(session_id)
        cursor = event_log.get_last_cursor(str(session_id))
    finally:
        held.release()
    return UndoResult(turn_id=undone.turn_id, text=undone.text, message=UNDO_NOTICE, cursor=cursor)
