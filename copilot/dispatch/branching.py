"""Another version of what was said: edit and resend, retry, switch (A30.6)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError, transaction

from copilot import history, presets, queries, turns
from copilot.agent import prefixes, prompt
from copilot.commands import PageContext, Resend, SendMessage
from copilot.dispatch.admission import recall
from copilot.dispatch.answers import Started
from copilot.dispatch.choosing import choose
from copilot.dispatch.holding import LOOK_SECONDS, Hold, busy, hold
from copilot.dispatch.limits import admit, check_limit, let_go
from copilot.dispatch.repetition import SETTLE_SECONDS, first_outcome
from copilot.dispatch.telling import announce, publish_page
from copilot.errors import Conflict, InvalidRequest, Unavailable
from copilot.events import AttachmentView
from copilot.live import stream
from copilot.models import Message, Turn
from copilot.workspace import files


def resend(command: Resend) -> Started:
    """Start a turn with another version of a message; rows from the first one on become an older branch.

    Without a text it is a retry. The original's files go with it, as far as they still exist.
    """
    queries.session_of(command.user_id, command.session_id)
    if (first := _first(command)) is not None:
        return first
    try:
        return _resend(command)
    except Conflict as conflict:  # perhaps with the same request, sent twice
        if (first := _twin(command, deciding=conflict.code == busy().code)) is not None:
            return first
        raise


def _resend(command: Resend) -> Started:
    original = history.addressed(command.session_id, command.message_id)
    if command.text is not None and original.pk != command.message_id:
        raise InvalidRequest("Only what a person said can be edited.")
    message = choose(_again(command, original))
    check_limit(command.user_id)
    attachments, ignored = files.resolve_attachments(command.user_id, message.attachments)
    if not attachments and not message.text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    with ExitStack() as stack:
        held = hold(command.session_id)
        stack.callback(held.let_go)
        started = _start(held, original.pk, message, attachments, ignored)
        stack.pop_all()  # the turn has the session now
    return started


def _again(command: Resend, original: Message) -> SendMessage:
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


def _twin(command: Resend, *, deciding: bool) -> Started | None:
    """The outcome of the same request, which may still be on its way to one: the session is held, and no turn has begun."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        over = not deciding or command.run_id is None or time.monotonic() > deadline
        over = over or Turn.objects.filter(session=command.session_id, status__in=Turn.UNFINISHED).exists()
        if (first := _first(command)) is not None or over:
            return first
        time.sleep(LOOK_SECONDS)


def _first(command: Resend) -> Started | None:
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
    outcome = first_outcome(repeated)
    if outcome is None or isinstance(outcome, Started):
        return outcome
    raise busy()


def _start(
    held: Hold,
    original_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentView],
    ignored: list[str],
) -> Started:
    message_id = uuid4()
    admit(message.user_id, held.turn_id)
    try:
        opening, opened = _opened(held, original_id, message_id, message, attachments)
    except IntegrityError as problem:  # somebody else's turn is unfinished here
        let_go(message.user_id, held.turn_id)
        raise busy() from problem
    except DatabaseError as problem:
        let_go(message.user_id, held.turn_id)
        raise Unavailable from problem
    prefixes.broken("edit", held.session_id)
    publish_page(held.session_id)  # before a worker wakes: in the log it would undo its first words
    [view] = queries.views([message_id])
    cursor = announce(opening, opened, message.user_id, view, queue_changed=True)
    return Started(
        message_id=message_id,
        turn_id=held.turn_id,
        run_id=message.run_id,
        cursor=cursor,
        ignored_attachments=ignored,
    )


def _opened(
    held: Hold,
    original_id: UUID,
    message_id: UUID,
    message: SendMessage,
    attachments: list[AttachmentView],
) -> tuple[turns.Opening, turns.Opened]:
    """Row, branch and turn in one transaction: a refusal leaves the conversation as it was."""
    page = message.page_context or PageContext()
    context = prompt.server_context(
        sent=history.SENT, page_url=page.url, page_text=page.text, attachments=attachments
    )
    with transaction.atomic():
        accepted = history.accept(message_id, message, attachments, context)
        if accepted is None:
            first_outcome(message)  # says why: no such session, an inactive account, a run_id used before
            raise busy()
        opening = turns.Opening(
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
        history.fork(held.session_id, original_id, message_id)
        if history.is_empty(held.session_id):  # what is said now is the first that the model reads
            if history.introduces(message):
                history.introduce(message_id, message.user_id)
            if message.permissions.memory:
                recall(message_id, message)
        if accepted.builds is not None:
            history.add_context(message_id, presets.builder_context(message.user_id, accepted.builds))
        opened = turns.open_turn(opening)
        if opened is None:  # an earlier message waits that needs a turn of its own
            raise busy()
    return opening, opened


@dataclass(frozen=True, kw_only=True)
class Switched:
    message_id: UUID
    branch: int
    versions: int
    cursor: str


def switch_branch(user_id: int, session_id: UUID, message_id: UUID, branch: int) -> Switched:
    """Another version becomes the shown and continued one, in every open tab."""
    queries.session_of(user_id, session_id)
    held = hold(session_id)
    try:
        switched = history.switch(session_id, message_id, branch)
        prefixes.broken("edit", session_id)
        publish_page(session_id)
        cursor = stream.last_cursor(str(session_id))
    finally:
        held.let_go()
    [view] = queries.views([switched.message_id])
    return Switched(
        message_id=switched.message_id, branch=switched.branch, versions=view.versions, cursor=cursor
    )
