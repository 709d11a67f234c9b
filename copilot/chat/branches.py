"""Edit, retry, switch and undo messages; rows are hidden and shown again, never rewritten."""

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
    return Message.objects.visible().filter(session=session_id)


def has_no_shown_messages(session_id: UUID) -> bool:
    return not shown_messages(session_id).exists()


def get_addressed_message(session_id: UUID, message_id: UUID) -> Message:
    """Return the user's message behind a row: the row itself, or the last user message before it."""
    place = shown_messages(session_id).filter(pk=message_id).values("sequence")
    before = (
        shown_messages(session_id).filter(kind="user", sequence__lte=Subquery(place)).order_by("-sequence")
    )
    message = before.first()  # one statement, so that both rows were shown at the same time
    if message is None:
        raise _build_not_shown_error(session_id, message_id)
    return message


def _build_not_shown_error(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is no longer shown.", code="not_shown")
    return NotFound()


def store_new_version(session_id: UUID, message_id: UUID, version_id: UUID) -> None:
    """Make a pending message the next version of a shown one, and keep what followed that one as its branch.

    The caller has locked the session, and gives the version its place in the same transaction.
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
    shown_messages(session_id).filter(sequence__gte=sequence).update(
        hidden=OLDER_BRANCH, hidden_with_version=version_id
    )


@dataclass(frozen=True, kw_only=True)
class SwitchedVersion:
    message_id: UUID
    branch: int


def show_version(session_id: UUID, message_id: UUID, branch: int) -> SwitchedVersion:
    with transaction.atomic():
        shown = shown_messages(session_id).filter(pk=message_id, kind="user").first()
        if shown is None or shown.sequence is None:
            raise _build_not_shown_error(session_id, message_id)
        if shown.branch == branch:
            return SwitchedVersion(message_id=shown.pk, branch=branch)
        chosen = None
        if shown.version_of is not None:
            versions = Message.objects.filter(version_of=shown.version_of, hidden=OLDER_BRANCH)
            chosen = versions.filter(branch=branch).first()
        if chosen is None:
            raise Conflict("This message has no such version.", code="no_such_branch")
        _hide_as_older_branch(session_id, shown.pk, shown.sequence)
        Message.objects.filter(hidden_with_version=chosen.pk).update(hidden="", hidden_with_version=None)
    return SwitchedVersion(message_id=chosen.pk, branch=branch)


@dataclass(frozen=True, kw_only=True)
class HiddenTurn:
    turn_id: UUID | None
    text: str  # what the user had said in it
    rows: int


def hide_last_turn(session_id: UUID) -> HiddenTurn:
    """Hide the last shown turn and whatever came after it; a summary that includes it is void too."""
    with transaction.atomic():
        last = shown_messages(session_id).filter(kind="user").order_by("-sequence").first()
        if last is None:
            raise Conflict("There is nothing to undo.", code="nothing_to_undo")
        first = shown_messages(session_id).filter(turn=last.turn_id).order_by("sequence").first() or last
        hidden_rows = shown_messages(session_id).filter(sequence__gte=first.sequence)
        texts = hidden_rows.filter(kind="user").order_by("sequence").values_list("content", flat=True)
        text = "\n\n".join(texts)
        rows = hidden_rows.update(hidden=UNDONE)
    return HiddenTurn(turn_id=last.turn_id, text=text, rows=rows)


# --- Edit, retry and switch --------------------------------------------------------------------------


def resend_message(command: ResendMessage) -> SubmissionStarted:
    """Start a turn with another version of a message; the shown version becomes an older branch.

    Without a text it is a retry. The original's files go with it, as far as they still exist.
    """
    selectors.get_session(command.user_id, command.session_id)
    if (first := _replay_first_resend(command)) is not None:
        return first
    try:
        return _resend_once(command)
    except Conflict as conflict:  # perhaps the same request was sent twice
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
        raise InvalidRequest("Only your own messages can be edited.")
    message = apply_plan_to_message(_build_repeated_message(command, original))
    check_usage_limit(command.user_id)
    attachments, ignored = files.resolve_attachments(command.user_id, message.attachments)
    if not attachments and not message.text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    with ExitStack() as stack:
        lock = lock_idle_session(command.session_id)
        stack.callback(lock.release)
        started = _start_version_turn(lock, original.pk, message, attachments, ignored)
        stack.pop_all()  # the turn holds the session now
    return started


def _build_repeated_message(command: ResendMessage, original: Message) -> SendMessage:
    context = original.page_context
    return SendMessage(
        session_id=command.session_id,
        user_id=command.user_id,
        text=original.content if command.text is None else command.text,
        attachments=tuple(attachment["file_id"] for attachment in original.attachments),
        page_context=PageContext(**context) if context else None,
        tier=command.tier or original.tier,
        mode=command.mode or original.mode,
        run_id=command.run_id,
        origin=command.origin,
        permissions=command.permissions,
        author=original.author,
    )


def _wait_for_twin_outcome(command: ResendMessage, *, deciding: bool) -> SubmissionStarted | None:
    """Return the outcome of the same request sent earlier.

    With `deciding` it may still be on its way: the session is locked, and no turn has begun.
    """
    deadline = time.monotonic() + FIRST_OUTCOME_TIMEOUT_SECONDS
    while True:
        is_final = not deciding or command.run_id is None or time.monotonic() > deadline
        is_final = is_final or Turn.objects.unfinished().filter(session=command.session_id).exists()
        if (first := _replay_first_resend(command)) is not None or is_final:
            return first
        time.sleep(LOCK_POLL_SECONDS)


def _replay_first_resend(command: ResendMessage) -> SubmissionStarted | None:
    if command.run_id is None:
        return None
    versions = Message.objects.filter(session=command.session_id, run_id=command.run_id)
    text = versions.values_list("content", flat=True).first()
    if text is None:
        return None
    repeated = SendMessage(
        session_id=command.session_id,
        user_id=command.user_id,
        text=text if command.text is None else command.text,
        run_id=command.run_id,
        origin=command.origin,
        permissions=command.permissions,
    )
    outcome = replay_first_outcome(repeated)
    if outcome is None or isinstance(outcome, SubmissionStarted):
        return outcome
    raise build_session_busy_error()


def _start_version_turn(
    lock: SessionLock,
    original_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentPayload],
    ignored: list[str],
) -> SubmissionStarted:
    message_id = uuid4()
    place_hold(message.user_id, lock.turn_id)
    try:
        new_turn, opened = _open_version_turn(lock, original_id, message_id, message, attachments)
    except IntegrityError as problem:  # another turn is unfinished here
        release_hold(message.user_id, lock.turn_id)
        raise build_session_busy_error() from problem
    except DatabaseError as problem:
        release_hold(message.user_id, lock.turn_id)
        raise ServiceUnavailable from problem
    system_prompt.record_cache_break("edit", lock.session_id)
    # Publish it before a worker wakes: later in the log, it would hide the turn's first events.
    publish_snapshot(lock.session_id)
    [payload] = selectors.serialize_messages_by_id([message_id])
    cursor = announce_queued_turn(new_turn, opened, message.user_id, payload, queue_changed=True)
    return SubmissionStarted(
        message_id=message_id,
        turn_id=lock.turn_id,
        run_id=message.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _open_version_turn(
    lock: SessionLock,
    original_id: UUID,
    message_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentPayload],
) -> tuple[turns.NewTurn, turns.OpenedTurn]:
    """Store row, branch and turn in one transaction, so that a refusal leaves the session as it was."""
    page = message.page_context or PageContext()
    context = model_context.build_message_context(
        sent=messages.SENT_TIME_PLACEHOLDER, page_url=page.url, page_text=page.text, attachments=attachments
    )
    with transaction.atomic():
        accepted = messages.insert_message(message_id, message, attachments, context)
        if accepted is None:
            # It raises the reason: no such session, an inactive account, or a run_id used before.
            replay_first_outcome(message)
            raise build_session_busy_error()
        new_turn = turns.NewTurn(
            turn_id=lock.turn_id,
            token=lock.token,
            session_id=lock.session_id,
            message_id=message_id,
            origin=message.origin,
            run_id=message.run_id,
            tier=message.tier,
            mode=message.mode,
            permissions=message.permissions,
            accept_number=accepted.accept_number,
        )
        store_new_version(lock.session_id, original_id, message_id)
        if has_no_shown_messages(lock.session_id):  # this message is the first that the model reads
            if messages.may_include_user_context(message):
                messages.add_user_context(message_id, message.user_id)
            if message.permissions.memory:
                add_memories_to_context(message_id, message)
        if accepted.built_agent_id is not None:
            messages.append_server_context(
                message_id, agents.build_builder_context(message.user_id, accepted.built_agent_id)
            )
        opened = turns.open_turn(new_turn)
        if opened is None:  # an earlier message needs a turn of its own
            raise build_session_busy_error()
    return new_turn, opened


@dataclass(frozen=True, kw_only=True)
class BranchSwitchResult:
    message_id: UUID
    branch: int
    versions: int
    cursor: str


def switch_branch(user_id: int, session_id: UUID, message_id: UUID, branch: int) -> BranchSwitchResult:
    selectors.get_session(user_id, session_id)
    lock = lock_idle_session(session_id)
    try:
        switched = show_version(session_id, message_id, branch)
        system_prompt.record_cache_break("edit", session_id)
        publish_snapshot(session_id)
        cursor = event_log.get_last_cursor(str(session_id))
    finally:
        lock.release()
    [payload] = selectors.serialize_messages_by_id([switched.message_id])
    return BranchSwitchResult(
        message_id=switched.message_id, branch=switched.branch, versions=payload.versions, cursor=cursor
    )


# --- Undo --------------------------------------------------------------------------------------------

UNDO_NOTICE = "The last exchange was removed. Files, messages or purchases made by its tools are not undone."


@dataclass(frozen=True, kw_only=True)
class UndoResult:
    turn_id: UUID | None
    text: str  # what the user had said in it
    message: str
    cursor: str


def undo_last_turn(user_id: int, session_id: UUID) -> UndoResult:
    session = selectors.get_session(user_id, session_id)
    paused = Turn.objects.waiting().filter(session=session_id).first()
    if paused is not None:
        stop_session(user_id, session_id, turn_id=paused.pk)
    lock = lock_idle_session(session_id)
    try:
        undone = hide_last_turn(session_id)
        system_prompt.record_cache_break("undo", session_id)
        if session.goal_state == session.Goal.ACTIVE:
            pause_active_goal(user_id, session_id, "The last turn was undone.")
        publish_snapshot(session_id)
        cursor = event_log.get_last_cursor(str(session_id))
    finally:
        lock.release()
    return UndoResult(turn_id=undone.turn_id, text=undone.text, message=UNDO_NOTICE, cursor=cursor)
