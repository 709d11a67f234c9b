"""Queued messages enter the conversation: at a turn's start, at a tool boundary, at its end (T6, A13)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import takewhile

from django.conf import settings
from django.db import DatabaseError

from copilot import history, queries, turns
from copilot.agent import followups, pictures
from copilot.agent.commits import uncut
from copilot.agent.rebuilding import user_message
from copilot.agent.recorder import Recorder
from copilot.bridge import in_thread
from copilot.errors import Unavailable
from copilot.events import FollowUpDelivered, MessageAdded
from copilot.history import Pending, Taking
from copilot.live import lease
from copilot.live.client import RedisDown
from copilot.permissions import Permissions
from copilot.ports import send_turn
from copilot.providers.base import Entry, UserMessage
from copilot.turns import Claimed
from copilot.workspace import files

log = logging.getLogger(__name__)


def at_turn_start(turn: Claimed) -> list[Taking]:
    """What waited when the turn began joins it; earlier accepted ones go in front (T6.2)."""
    return _taken(turn, start=history.start_of(turn.turn_id))


def at_turn_end(turn: Claimed) -> list[Taking]:
    """What came while the turn ran: the turn goes on with it (T6.3)."""
    return _taken(turn, start=None)


def _taken(turn: Claimed, *, start: history.Start | None) -> list[Taking]:
    def choose(pending: list[Pending]) -> list[Taking]:
        taken: list[Taking] = []
        characters = 0
        for one in _decided(turn, pending)[: turns.ROOM_BEFORE]:
            characters += len(one.text)
            if not _may_join(turn, one) or (taken and characters > settings.MESSAGE_CHARACTERS):
                break
            taken.append(Taking(message=one))
        return taken

    return _take(turn, choose, start=start)


def _take(
    turn: Claimed, choose: Callable[[list[Pending]], list[Taking]], *, start: history.Start | None = None
) -> list[Taking]:
    """What cannot be stored stays at the head of the queue, and the turn goes on without it (T6.4)."""
    try:
        taken = history.take(turn.turn_id, turn.fence, choose, start=start)
    except (DatabaseError, Unavailable):
        log.exception("queued messages could not be taken by turn %s", turn.turn_id)
        return []
    return _settled(turn, taken)


def _decided(turn: Claimed, pending: list[Pending]) -> list[Pending]:
    """The head of the queue, up to a message that may yet be refused: its request has not been to the queue."""
    if not any(one.arriving for one in pending):
        return pending
    admitted = lease.admitted(str(turn.session_id))
    return list(
        takewhile(lambda one: not one.arriving or admitted is None or str(one.id) in admitted, pending)
    )


def _may_join(turn: Claimed, one: Pending) -> bool:
    """A run_id wants a turn of its own; narrower permissions than the turn's need one (T3.6, A13.9)."""
    return one.run_id is None and turn.permissions.within(Permissions.from_json(one.permissions))


def _settled(turn: Claimed, taken: list[Taking]) -> list[Taking]:
    members = [lease.Member(one.message.accept_number, False, str(one.message.id)) for one in taken]
    try:
        lease.forget(str(turn.session_id), members)
    except RedisDown:
        log.warning("messages taken by turn %s still stand in the queue; it is mended later", turn.turn_id)
    return taken


async def tell(turn: Claimed, recorder: Recorder, taken: list[Taking]) -> None:
    """Chips become bubbles: each in its place, then the queue as it stands (T6.6)."""
    views = await in_thread(queries.views, [one.message.id for one in taken])
    for view in views:
        recorder.publish(MessageAdded(message=view))
    recorder.publish(await in_thread(queries.queue_now, turn.session_id))


def messages(turn: Claimed, taken: list[Taking], chain: tuple[Entry, ...]) -> list[UserMessage]:
    """What the model reads of each, to the byte what it will read of its row in later turns (A13.5)."""
    rows = history.rows_named([one.message.id for one in taken])
    images = pictures.load(rows, turn.user_id, chain)
    return [user_message(row, images) for row in rows]


class Boundary:
    """The loop's follow-ups: what people said while tools ran."""

    def __init__(self, turn: Claimed, recorder: Recorder, chain: tuple[Entry, ...]) -> None:
        self._turn = turn
        self._recorder = recorder
        self._chain = chain

    async def take(self) -> tuple[UserMessage, ...]:
        return await uncut(self._take_and_tell())

    async def _take_and_tell(self) -> tuple[UserMessage, ...]:
        taken = await in_thread(self._take)
        if not taken:
            return ()
        await tell(self._turn, self._recorder, taken)
        queued = await in_thread(queries.queue_items, self._turn.session_id)
        delivered = [str(one.message.id) for one in taken]
        self._recorder.publish(FollowUpDelivered(message_ids=delivered, still_queued=len(queued)))
        return tuple(await in_thread(messages, self._turn, taken, self._chain))

    def _take(self) -> list[Taking]:
        if not history.has_pending(self._turn.session_id):
            return []
        return _take(self._turn, self._choose)

    def _choose(self, pending: list[Pending]) -> list[Taking]:
        pending = _decided(self._turn, pending)
        queue = {str(one.id): one for one in pending}
        room = followups.Room(message=settings.FOLLOW_UP_CHARACTERS, boundary=settings.FOLLOW_UPS_CHARACTERS)
        fitting = followups.fitting([self._follow_up(one) for one in pending], room)
        for one in fitting:
            if followups.shortened(one, room):
                files.store_tool_output(self._turn.session_id, one.id, one.text)
        blocks = followups.stored(fitting, room)
        return [
            Taking(message=queue[one.id], follow_up=block) for one, block in zip(fitting, blocks, strict=True)
        ]

    def _follow_up(self, one: Pending) -> followups.FollowUp:
        return followups.FollowUp(
            id=str(one.id),
            text=one.text,
            page_url=one.page_url,
            file_ids=one.file_ids,
            may_join=_may_join(self._turn, one),
        )


def give_away(turn: Claimed, *, lost: bool) -> None:
    """Another worker goes on with this turn, under a higher fence."""
    requeued = turns.requeue(turn.turn_id, turn.fence, lost=lost)
    if requeued is not None:
        lease.take_over(
            str(turn.session_id), turn_id=str(turn.turn_id), token=str(turn.token), fence=requeued.fence
        )
        send_turn(turn.turn_id)
