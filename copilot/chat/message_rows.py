"""A message as a plain value, from which the prompt is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from config.core.json_values import JSON
from copilot.realtime.payloads import AttachmentPayload, MessageKind


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    """A message. `data` holds what its kind needs besides the text:

    user          {"follow_up": block} if it was taken between two tool calls; "context_sources"?
    tool_call     {"tool", "arguments", "raw"?}
    tool_result   {"tool", "success", "preview", "duration_ms", "truncated", "file_id", "digest"?, "sources"?}
    """

    id: str
    kind: MessageKind
    content: str = ""
    data: Mapping[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    turn_id: str | None = None
    hidden: str = ""  # retracted, undone, older_branch; empty = visible
    streaming: bool = False
    attachments: tuple[AttachmentPayload, ...] = ()
    server_context: str = ""  # precedes the text, frozen, for the model only
    replay: tuple[str, ...] = field(default=(), repr=False)
    mid_turn: bool = False
    model: str = ""
    sequence: int | None = None
