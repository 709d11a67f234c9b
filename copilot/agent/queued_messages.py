"""Take queued messages into the context: at a turn's start, at a tool boundary and at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import structlog
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
    """Limits in characters."""

    message: int = 2_000  # of one message
    boundary: int = 6_000  # of all rendered entries together


DEFAULT_FOLLOW_UP_LIMITS = FollowUpLimits()


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A queued message. `may_join` is false if it needs a turn of its own."""

    id: str
    text: str
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    may_join: bool = True


def select_follow_ups(
    queued: Sequence[FollowUp], limits: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS
) -> tuple[FollowUp, ...]:
    """Select the head of the queue that fits at this boundary; the first is always taken."""
    taken: list[FollowUp] = []
    characters = 0
    for follow_up in queued:
        characters += len(_render_entry(len(taken) + 1, follow_up, limits))
        fits = characters <= limits.boundary and not is_truncated(follow_up, limits)
        if not follow_up.may_join or (taken and not fits):
            break
        taken.append(follow_up)
    return tuple(taken)


def is_truncated(follow_up: FollowUp, limits: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS) -> bool:
    """Check whether the model sees only a part, so that the whole must be readable by the message's id."""
    return len(follow_up.text) > limits.message


def render_follow_ups(taken: Sequence[FollowUp], limits: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS) -> str:
    """Render the block after the tool results. It is stored entry by entry and replayed unchanged."""
    entries = [_render_entry(number, follow_up, limits) for number, follow_up in enumerate(taken, start=1)]
    return build_server_block("user_follow_up", "\n".join(entries))


def render_stored_blocks(
    taken: Sequence[FollowUp], limits: FollowUpLimits = DEFAULT_FOLLOW_UP_LIMITS
) -> tuple[str, ...]:
    """Render each row's `data["follow_up"]`: its entry in a block of its own, joined again when read."""
    return tuple(
        build_server_block("user_follow_up", _render_entry(number, follow_up, limits))
        for number, follow_up in enumerate(taken, start=1)
    )


def _render_entry(number: int, follow_up: FollowUp, limits: FollowUpLimits) -> str:
    lines = [f"{number}. {escape_text(follow_up.text[: limits.message])}"]
    if is_truncated(follow_up, limits):
        lines.append(
            f"   [the first {limits.message:,} of {len(follow_up.text):,} characters; "
            f'the whole message: read_tool_result with call_id "{follow_up.id}"]'
        )
    if follow_up.page_url:
        lines.append(f"   page: {escape_text(follow_up.page_url)}")
    if follow_up.file_ids:
        lines.append(f"   files: {escape_text(', '.join(follow_up.file_ids))}")
    return "\n".join(lines)


# --- Taking messages from the queue ---

log = structlog.get_logger(__name__)


def take_at_turn_start(turn: ClaimedTurn) -> list[ConsumedMessage]:
    """Take messages that waited when the turn began; those accepted earlier go first."""
    start = queue.get_starting_message(turn.turn_id)
    return [] if start.sent_alone else _take_joinable(turn, start=start)


def take_at_turn_end(turn: ClaimedTurn) -> list[ConsumedMessage]:
    return _take_joinable(turn, start=None)


def _take_joinable(turn: ClaimedTurn, *, start: queue.StartingMessage | None) -> list[ConsumedMessage]:
    def choose(pending: list[PendingMessage]) -> list[ConsumedMessage]:
        taken: list[ConsumedMessage] = []
        characters = 0
        for message in _admitted_head(turn, pending)[: turns.SEQUENCES_LEFT_FREE]:
            characters += len(message.text)
            if not _can_join(turn, message) or (taken and characters > settings.MESSAGE_CHARACTERS):
                break
            taken.append(ConsumedMessage(message=message))
        return taken

    return _take_pending(turn, choose, start=start)


def _take_pending(
    turn: ClaimedTurn,
    choose: Callable[[list[PendingMessage]], list[ConsumedMessage]],
    *,
    start: queue.StartingMessage | None = None,
) -> list[ConsumedMessage]:
    """Take the chosen messages; if they cannot be stored, they stay queued and the turn continues."""
    try:
        taken = queue.consume_pending_messages(turn.turn_id, turn.fence, choose, start=start)
    except (DatabaseError, ServiceUnavailable):
        log.exception("queued_messages_not_taken", turn_id=str(turn.turn_id))
        return []
    return _remove_from_queue(turn, taken)


def _admitted_head(turn: ClaimedTurn, pending: list[PendingMessage]) -> list[PendingMessage]:
    """Return the head of the queue, up to a message whose admission is still undecided."""
    if not any(message.is_arriving for message in pending):
        return pending
    admitted = lease.list_admitted_ids(str(turn.session_id))
    return list(
        takewhile(
            lambda message: not message.is_arriving or admitted is None or str(message.id) in admitted,
            pending,
        )
    )


def _can_join(turn: ClaimedTurn, message: PendingMessage) -> bool:
    """Keep messages out that have a run_id or narrower permissions than the turn."""
    return message.run_id is None and turn.permissions.is_within(Permissions.from_json(message.permissions))


def _remove_from_queue(turn: ClaimedTurn, taken: list[ConsumedMessage]) -> list[ConsumedMessage]:
    members = [
        lease.QueueMember(consumed.message.accept_number, False, str(consumed.message.id))
        for consumed in taken
    ]
    try:
        lease.remove_members(str(turn.session_id), members)
    except REDIS_OUTAGE_ERRORS:
        log.warning("queue_removal_failed", turn_id=str(turn.turn_id), messages=len(taken))
    return taken


async def publish_taken(turn: ClaimedTurn, recorder: TurnRecorder, taken: list[ConsumedMessage]) -> None:
    views = await run_in_thread(
        chat_selectors.serialize_messages_by_id, [consumed.message.id for consumed in taken]
    )
    for view in views:
        recorder.publish(MessageAdded(message=view))
    recorder.publish(await run_in_thread(chat_selectors.get_queue, turn.session_id))


def load_user_messages(
    turn: ClaimedTurn, taken: list[ConsumedMessage], chain: tuple[CatalogueEntry, ...]
) -> list[UserMessage]:
    """Load messages for the model, byte for byte as later turns will read them."""
    rows = message_history.list_rows_by_id([consumed.message.id for consumed in taken])
    images = image_files.load_images(rows, turn.user_id, chain)
    return [build_user_message(row, images) for row in rows]


class TurnFollowUps:
    """Take messages that people wrote while tools ran."""

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
        delivered = [str(consumed.message.id) for consumed in taken]
        self._recorder.publish(FollowUpDelivered(message_ids=delivered, still_queued=len(queued)))
        return tuple(await run_in_thread(load_user_messages, self._turn, taken, self._chain))

    def _take(self) -> list[ConsumedMessage]:
        if not queue.has_pending_messages(self._turn.session_id):
            return []
        return _take_pending(self._turn, self._choose)

    def _choose(self, pending: list[PendingMessage]) -> list[ConsumedMessage]:
        pending = _admitted_head(self._turn, pending)
        queue = {str(message.id): message for message in pending}
        limits = FollowUpLimits(
            message=settings.FOLLOW_UP_CHARACTERS, boundary=settings.FOLLOW_UPS_CHARACTERS
        )
        fitting = select_follow_ups([self._follow_up(message) for message in pending], limits)
        for follow_up in fitting:
            if is_truncated(follow_up, limits):
                files.store_tool_output(self._turn.session_id, follow_up.id, follow_up.text)
        blocks = render_stored_blocks(fitting, limits)
        return [
            ConsumedMessage(message=queue[follow_up.id], follow_up=block)
            for follow_up, block in zip(fitting, blocks, strict=True)
        ]

    def _follow_up(self, message: PendingMessage) -> FollowUp:
        return FollowUp(
            id=str(message.id),
            text=message.text,
            page_url=message.page_url,
            file_ids=message.file_ids,
            may_join=_can_join(self._turn, message),
        )
