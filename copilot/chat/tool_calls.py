"""Read one tool call whole: its arguments, how it ended, and its output page by page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from config.core.errors import NotFound, StorageUnavailable
from config.core.redaction import redact_secret_patterns
from copilot.chat import selectors
from copilot.files import services as files
from copilot.models import Message, Turn
from copilot.tools.results import redact_arguments

OUTPUT_PAGE_CHARACTERS = 50_000
MAX_OUTPUT_PAGE_CHARACTERS = 200_000
ToolCallStatus = Literal["running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class ToolCallDetails:
    """A tool call as its owner may read it: whole, with secrets redacted."""

    call_id: str
    tool: str
    status: ToolCallStatus
    arguments: dict[str, Any]  # JSON
    raw_arguments: str  # what the model wrote, if it was no valid JSON object
    duration_ms: int | None
    output: str  # a page of it
    offset: int
    characters: int  # of the whole output
    next_offset: int | None
    output_complete: bool  # False: the rest could not be stored
    file_id: str | None  # the whole output as a file
    session_id: str | None


def get_tool_call(
    user_id: int, turn_id: UUID, call_id: str, *, offset: int = 0, limit: int = OUTPUT_PAGE_CHARACTERS
) -> ToolCallDetails:
    turn = selectors.get_turn(user_id, turn_id)
    rows = Message.objects.visible().filter(session=turn.session_id, turn=turn, call_id=call_id)
    call = rows.filter(kind=Message.Kind.TOOL_CALL).first()
    if call is None:
        raise NotFound
    result = rows.filter(kind=Message.Kind.TOOL_RESULT).first()
    text, complete = _read_output(user_id, result) if result is not None else ("", True)
    page = text[offset : offset + limit]
    end = offset + len(page)
    return ToolCallDetails(
        call_id=call_id,
        tool=call.data["tool"],
        status=_get_status(turn, result),
        arguments=redact_arguments(call.data.get("arguments") or {}),
        raw_arguments=redact_secret_patterns(call.data.get("raw", "")),
        duration_ms=result.data["duration_ms"] if result is not None else None,
        output=page,
        offset=offset,
        characters=len(text),
        next_offset=end if page and end < len(text) else None,
        output_complete=complete,
        file_id=result.data.get("file_id") if result is not None else None,
        session_id=result.data.get("session_id") if result is not None else None,
    )


def _get_status(turn: Turn, result: Message | None) -> ToolCallStatus:
    if result is None:
        return "cancelled" if turn.status in Turn.ENDINGS else "running"
    if result.data.get("cancelled"):
        return "cancelled"
    return "succeeded" if result.data["success"] else "failed"


def _read_output(user_id: int, result: Message) -> tuple[str, bool]:
    """Return the output and whether it is whole: the stored file, or else the model's copy."""
    text = result.content
    if result.data.get("file_id") is not None:
        with suppress(NotFound, StorageUnavailable):
            text = files.read_tool_output(user_id, result.session_id, result.call_id or "")
    return text, not (result.data.get("truncated") and text == result.content)
