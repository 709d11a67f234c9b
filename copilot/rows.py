"""One row of the transcript as a plain value: what the table holds and the prompt is built from (A0.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from copilot.events import JSON, AttachmentView, RowKind


@dataclass(frozen=True, kw_only=True)
class Row:
    """`data` holds what the kind needs besides text:

    user          {"follow_up": block} of one that was taken at a tool boundary; "context_sources"?
    tool_call     {"tool", "arguments", "raw"?}
    tool_result   {"tool", "success", "preview", "duration_ms", "truncated", "file_id", "digest"?, "sources"?}
    """

    id: str
    kind: RowKind
    content: str = ""
    data: Mapping[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    turn_id: str | None = None
    hidden: str = ""  # retracted, undone, older_branch; empty = visible
    streaming: bool = False
    attachments: tuple[AttachmentView, ...] = ()
    server_context: str = ""  # frozen in front of the text, for the model alone
    replay: tuple[str, ...] = field(default=(), repr=False)
    mid_turn: bool = False
    model: str = ""
    sequence: int | None = None


def storable(text: str) -> str:
    """Text that a row and a socket can carry: no NUL, no half of a surrogate pair."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def inside(value: JSON) -> Iterable[JSON]:
    """One level down; nothing in what holds nothing."""
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()
