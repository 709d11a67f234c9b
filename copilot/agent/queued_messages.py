"""What people said while tools ran: how much of it fits at a boundary, and how the model reads it (A13.3, A13.5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from django.conf import settings
from django.db import DatabaseError

from config.core.batching import run_shielded
from config.core.db import run_in_thread
from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent import image_files
from copilot.agent.model_context import build_user_message
from copilot.agent.recorder import TurnRecorder
from copilot.chat import message_history, queue, turns
from copilot.chat import selectors as chat_selectors
from copilot.chat.permissions import Permissions
from copilot.chat.prompt_tags import build_server_block, escape_text
from copilot.chat.queue import ConsumedMessage, PendingMessage
from copilot.chat.turns import ClaimedTurn
from copilot.files import services as files
from copilot.providers.base import CatalogueEntry, UserMessage
from copilot.realtime import lease
from copilot.realtime.events import FollowUpDelivered, MessageAdded


@dataclass(frozen=True, kw_only=True)
class FollowUpLimits:
    """In characters (A0.7)."""

    message: int = 2_000  # shown of one message
    boundary: int = 6_000  # of all rendered entries


DEFAULT_FOLLOW_UP_LIMITS = FollowUpLimits()


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """One queued message. `may_join` is false when it needs a turn of its own (T6.1, A13.9)."""

    id: str
    text: str
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    may_join: bool = True


def select_follow_ups(
    queued: Sequence[FollowUp], room: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS
) -> tuple[FollowUp, ...]:
    """The head of the queue that this boundary takes; the first is taken however long it is."""
    taken: list[FollowUp] = []
    characters = 0
    for follow_up in queued:
        characters += len(_render_entry(len(taken) + 1, follow_up, room))
        fits = characters <= room.boundary and not is_truncated(follow_up, room)
        if not follow_up.may_join or (taken and not fits):
            break
        taken.append(follow_up)
    return tuple(taken)


def is_truncated(follow_up: FollowUp, room: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS) -> bool:
    """The model sees a part, so the whole must be readable under the message's id before the block is."""
    return len(follow_up.text) > room.message


def render_follow_ups(taken: Sequence[FollowUp], room: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS) -> str:
    """The block that follows the tool results: stored entry by entry, then replayed byte by byte."""
    entries = [_render_entry(number, follow_up, room) for number, follow_up in enumerate(taken, start=1)]
    return build_server_block("user_follow_up", "\n".join(entries))


def render_stored_blocks(
    taken: Sequence[FollowUp], room: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS
) -> tuple[str, ...]:
    """`data["follow_up"]` of each row: its entry in a block of its own; neighbours are read as one block."""
    return tuple(
        build_server_block("user_follow_up", _render_entry(number, follow_up, room))
        for number, follow_up in enumerate(taken, start=1)
    )


def _render_entry(number: int, follow_up: FollowUp, room: FollowUpLimits) -> str:
    lines = [f"{number}. {escape_text(follow_up.text[: room.message])}"]
    if is_truncated(follow_up, room):
        lines.append(
            f"   [the first {room.message:,} of {len(follow_up.text):,} characters; "
            f'the whole message: read_tool_result with call_id "{follow_up.id}"]'
        )
    if follow_up.page_url:
        lines.append(f"   page: {escape_text(follow_up.page_url)}")
    if follow_up.file_ids:
        lines.append(f"   files: {escape_text(', '.join(follow_up.file_ids))}")
    return "\n".join(lines)


# MERGED agent.taking: Queued messages enter the conversation: at a turn's start, at a tool boundary, at its end (T6, A13).

log = logging.getLogger(__name__)


def take_at_turn_start(turn: ClaimedTurn) -> list[ConsumedMessage]:
    """What waited when the turn began joins it; earlier accepted ones go in front (T6.2)."""
    return _take_joinable(turn, start=queue.get_starting_message(turn.turn_id))


def take_at_turn_end(turn: ClaimedTurn) -> list[ConsumedMessage]:
    """What came while the turn ran: the turn goes on with it (T6.3)."""
    return _take_joinable(turn, start=None)


def _take_joinable(turn: ClaimedTurn, *, start: queue.StartingMessage | None) -> list[ConsumedMessage]:
    def choose(pending: list[PendingMessage]) -> list[ConsumedMessage]:
        taken: list[ConsumedMessage] = []
        characters = 0
        for one in _admitted_head(turn, pending)[: turns.SEQUENCES_LEFT_FREE]:
            characters += len(one.text)
            if not _can_join(turn, one) or (taken and characters > settings.MESSAGE_CHARACTERS):
                break
            taken.append(ConsumedMessage(message=one))
        return taken

    return _take_pending(turn, choose, start=start)


def _take_pending(
    turn: ClaimedTurn,
    choose: Callable[[list[PendingMessage]], list[ConsumedMessage]],
    *,
    start: queue.StartingMessage | None = None,
) -> list[ConsumedMessage]:
    """What cannot be stored stays at the head of the queue, and the turn goes on without it (T6.4)."""
    try:
        taken = queue.consume_pending_messages(turn.turn_id, turn.fence, choose, start=start)
    except (DatabaseError, ServiceUnavailable):
        log.exception("queued messages could not be taken by turn %s", turn.turn_id)
        return []
    return _remove_from_queue(turn, taken)


def _admitted_head(turn: ClaimedTurn, pending: list[PendingMessage]) -> list[PendingMessage]:
    """The head of the queue, up to a message that may yet be refused: its request has not been to the queue."""
    if not any(one.is_arriving for one in pending):
        return pending
    admitted = lease.list_admitted_ids(str(turn.session_id))
    return list(
        takewhile(lambda one: not one.is_arriving or admitted is None or str(one.id) in admitted, pending)
    )


def _can_join(turn: ClaimedTurn, one: PendingMessage) -> bool:
    """A run_id wants a turn of its own; narrower permissions than the turn's need one (T3.6, A13.9)."""
    return one.run_id is None and turn.permissions.is_within(Permissions.from_json(one.permissions))


def _remove_from_queue(turn: ClaimedTurn, taken: list[ConsumedMessage]) -> list[ConsumedMessage]:
    members = [lease.QueueMember(one.message.accept_number, False, str(one.message.id)) for one in taken]
    try:
        lease.remove_members(str(turn.session_id), members)
    except REDIS_OUTAGE_ERRORS:
        log.warning("messages taken by turn %s still stand in the queue; it is mended later", turn.turn_id)
    return taken


async def publish_taken(turn: ClaimedTurn, recorder: TurnRecorder, taken: list[ConsumedMessage]) -> None:
    """Chips become bubbles: each in its place, then the queue as it stands (T6.6)."""
    views = await run_in_thread(chat_selectors.serialize_messages_by_id, [one.message.id for one in taken])
    for view in views:
        recorder.publish(MessageAdded(message=view))
    recorder.publish(await run_in_thread(chat_selectors.get_queue, turn.session_id))


def load_user_messages(
    turn: ClaimedTurn, taken: list[ConsumedMessage], chain: tuple[CatalogueEntry, ...]
) -> list[UserMessage]:
    """What the model reads of each, to the byte what it will read of its row in later turns (A13.5)."""
    rows = message_history.list_rows_by_id([one.message.id for one in taken])
    images = image_files.load_images(rows, turn.user_id, chain)
    return [build_user_message(row, images) for row in rows]


class TurnFollowUps:
    """The loop's follow-ups: what people said while tools ran."""

    def __init__(self, turn: ClaimedTurn, recorder: TurnRecorder, chain: tuple[CatalogueEntry, ...]) -> None:
        self._turn = turn
        self._recorder = recorder
        self._chain = chain

    async def take_follow_ups(self) -> tuple[UserMessage, ...]:
        return await run_shielded(self._take_and_publish())

    async def _take_and_publish(self) -> tuple[UserMessage, ...]:
        taken = await run_in_thread(self._take)
        if not taken:
            return ()
        await publish_taken(self._turn, self._recorder, taken)
        queued = await run_in_thread(chat_selectors.get_queue_items, self._turn.session_id)
        delivered = [str(one.message.id) for one in taken]
        self._recorder.publish(FollowUpDelivered(message_ids=delivered, still_queued=len(queued)))
        return tuple(await run_in_thread(load_user_messages, self._turn, taken, self._chain))

    def _take(self) -> list[ConsumedMessage]:
        if not queue.has_pending_messages(self._turn.session_id):
            return []
        return _take_pending(self._turn, self._choose)

    def _choose(self, pending: list[PendingMessage]) -> list[ConsumedMessage]:
        pending = _admitted_head(self._turn, pending)
        queue = {str(one.id): one for one in pending}
        room = FollowUpLimits(message=settings.FOLLOW_UP_CHARACTERS, boundary=settings.FOLLOW_UPS_CHARACTERS)
        fitting = select_follow_ups([self._follow_up(one) for one in pending], room)
        for one in fitting:
            if is_truncated(one, room):
                files.store_tool_output(self._turn.session_id, one.id, one.text)
        blocks = render_stored_blocks(fitting, room)
        return [
            ConsumedMessage(message=queue[one.id], follow_up=block)
            for one, block in zip(fitting, blocks, strict=True)
        ]

    def _follow_up(self, one: PendingMessage) -> FollowUp:
        return FollowUp(
            id=str(one.id),
            text=one.text,
            page_url=one.page_url,
            file_ids=one.file_ids,
            may_join=_can_join(self._turn, one),
        )
