"""What people said while tools ran: how much of it fits at a boundary, and how the model reads it (A13.3, A13.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from copilot.tags import block, escape


@dataclass(frozen=True, kw_only=True)
class Room:
    """In characters (A0.7)."""

    message: int = 2_000  # shown of one message
    boundary: int = 6_000  # of all rendered entries


ROOM = Room()


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """One queued message. `may_join` is false when it needs a turn of its own (T6.1, A13.9)."""

    id: str
    text: str
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    may_join: bool = True


def fitting(queued: Sequence[FollowUp], room: Room = ROOM) -> tuple[FollowUp, ...]:
    """The head of the queue that this boundary takes; the first is taken however long it is."""
    taken: list[FollowUp] = []
    characters = 0
    for follow_up in queued:
        characters += len(_entry(len(taken) + 1, follow_up, room))
        fits = characters <= room.boundary and not shortened(follow_up, room)
        if not follow_up.may_join or (taken and not fits):
            break
        taken.append(follow_up)
    return tuple(taken)


def shortened(follow_up: FollowUp, room: Room = ROOM) -> bool:
    """The model sees a part, so the whole must be readable under the message's id before the block is."""
    return len(follow_up.text) > room.message


def render(taken: Sequence[FollowUp], room: Room = ROOM) -> str:
    """The block that follows the tool results: stored entry by entry, then replayed byte by byte."""
    entries = [_entry(number, follow_up, room) for number, follow_up in enumerate(taken, start=1)]
    return block("user_follow_up", "\n".join(entries))


def stored(taken: Sequence[FollowUp], room: Room = ROOM) -> tuple[str, ...]:
    """`data["follow_up"]` of each row: its entry in a block of its own; neighbours are read as one block."""
    return tuple(
        block("user_follow_up", _entry(number, follow_up, room))
        for number, follow_up in enumerate(taken, start=1)
    )


def _entry(number: int, follow_up: FollowUp, room: Room) -> str:
    lines = [f"{number}. {escape(follow_up.text[: room.message])}"]
    if shortened(follow_up, room):
        lines.append(
            f"   [the first {room.message:,} of {len(follow_up.text):,} characters; "
            f'the whole message: read_tool_result with call_id "{follow_up.id}"]'
        )
    if follow_up.page_url:
        lines.append(f"   page: {escape(follow_up.page_url)}")
    if follow_up.file_ids:
        lines.append(f"   files: {escape(', '.join(follow_up.file_ids))}")
    return "\n".join(lines)
