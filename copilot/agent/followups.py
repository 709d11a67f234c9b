"""What people said while tools ran: how much of it fits at a boundary, and how the model reads it (A13.3, A13.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from copilot.tags import block, escape

MOST_PER_MESSAGE = 2_000  # characters shown of one message
MOST_PER_BOUNDARY = 6_000  # characters of all rendered entries


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """One queued message. `may_join` is false when it needs a turn of its own (T6.1, A13.9)."""

    id: str
    text: str
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    may_join: bool = True


def fitting(queued: Sequence[FollowUp]) -> tuple[FollowUp, ...]:
    """The head of the queue that this boundary takes; the first is taken however long it is."""
    taken: list[FollowUp] = []
    characters = 0
    for follow_up in queued:
        characters += len(_entry(len(taken) + 1, follow_up))
        if not follow_up.may_join or (taken and not _fits(follow_up, characters)):
            break
        taken.append(follow_up)
    return tuple(taken)


def shortened(follow_up: FollowUp) -> bool:
    """The model sees a part, so the whole must be readable under the message's id before the block is."""
    return len(follow_up.text) > MOST_PER_MESSAGE


def render(taken: Sequence[FollowUp]) -> str:
    """The block that follows the tool results: stored entry by entry, then replayed byte by byte."""
    entries = [_entry(number, follow_up) for number, follow_up in enumerate(taken, start=1)]
    return block("user_follow_up", "\n".join(entries))


def stored(taken: Sequence[FollowUp]) -> tuple[str, ...]:
    """`data["follow_up"]` of each row: its entry in a block of its own; neighbours are read as one block."""
    return tuple(
        block("user_follow_up", _entry(number, follow_up)) for number, follow_up in enumerate(taken, start=1)
    )


def _fits(follow_up: FollowUp, characters: int) -> bool:
    return not shortened(follow_up) and characters <= MOST_PER_BOUNDARY


def _entry(number: int, follow_up: FollowUp) -> str:
    lines = [f"{number}. {escape(follow_up.text[:MOST_PER_MESSAGE])}"]
    if shortened(follow_up):
        lines.append(
            f"   [the first {MOST_PER_MESSAGE:,} of {len(follow_up.text):,} characters; "
            f'the whole message: read_tool_result with call_id "{follow_up.id}"]'
        )
    if follow_up.page_url:
        lines.append(f"   page: {escape(follow_up.page_url)}")
    if follow_up.file_ids:
        lines.append(f"   files: {escape(', '.join(follow_up.file_ids))}")
    return "\n".join(lines)
