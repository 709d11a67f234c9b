"""After a lost worker: what its run left open, and how the next one goes on from there (T9.1, A3.9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from copilot import history, queries
from copilot.agent.parts import ResultMade
from copilot.events import JSON, Event, ReasoningEnded, TextEnded, ToolFinished, ToolResultContent
from copilot.live.client import RedisDown
from copilot.providers.base import ToolCall
from copilot.rows import Row
from copilot.tools.base import CallOutcome

INTERRUPTED = "Interrupted, outcome unknown: the worker was lost while this ran. It has not been run again."


@dataclass(frozen=True, kw_only=True)
class Mended:
    """How to go on."""

    rows: tuple[Row, ...]  # with the text the log knew beyond the last checkpoint
    continuing: Row | None = None  # an answer that was cut off: the next text goes on in it
    finished: tuple[Row, ...] = ()  # rows that were streaming and are complete as they stand
    pending_calls: tuple[ToolCall, ...] = ()  # repeatable calls to run again
    results: tuple[ResultMade, ...] = ()  # for calls that are never run again by the platform
    answered: bool = False  # the answer stood; only the ending was lost


def mend(
    rows: Sequence[Row], *, turn_id: str, texts: Mapping[str, str], repeatable: Collection[str]
) -> Mended:
    """Judge the rows of an interrupted turn; `texts` are the present texts of streaming rows, by id."""
    present = [replace(row, content=texts[row.id]) if row.id in texts else row for row in rows]
    own = [row for row in present if row.turn_id == turn_id]
    streaming = [row for row in own if row.streaming]
    last = own[-1] if own else None
    continuing = (
        last if last is not None and last.streaming and last.kind == "assistant" and last.content else None
    )
    open_calls = _open_calls(own)
    again = tuple(call for call in open_calls if call.tool in repeatable)
    results = tuple(_unknown(call) for call in open_calls if call.tool not in repeatable)
    return Mended(
        rows=(*present, *(_result_row(made, turn_id) for made in results)),
        continuing=continuing,
        finished=tuple(row for row in streaming if row is not continuing),
        pending_calls=again,
        results=results,
        answered=last is not None and last.kind == "assistant" and not last.streaming and bool(last.content),
    )


def _open_calls(own: Sequence[Row]) -> list[ToolCall]:
    answered = {row.call_id for row in own if row.kind == "tool_result"}
    return [
        ToolCall(call_id=row.call_id or "", tool=str(row.data["tool"]), arguments=_arguments(row.data))
        for row in own
        if row.kind == "tool_call" and row.call_id not in answered
    ]


def _arguments(data: Mapping[str, JSON]) -> dict[str, JSON]:
    arguments = data.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _unknown(call: ToolCall) -> ResultMade:
    return ResultMade(row_id=uuid4(), outcome=unfinished_outcome(call, INTERRUPTED))


def _result_row(made: ResultMade, turn_id: str) -> Row:
    """The row as the model will read it, before it is stored."""
    outcome = made.outcome
    return Row(
        id=str(made.row_id),
        kind="tool_result",
        content=outcome.content,
        call_id=outcome.call_id,
        turn_id=turn_id,
        data={"tool": outcome.tool, "success": outcome.success},
    )


def unfinished_outcome(call: ToolCall, text: str) -> CallOutcome:
    """The result of a call that has none of its own."""
    return CallOutcome(
        call_id=call.call_id,
        tool=call.tool,
        success=False,
        content=text,
        preview=text,
        duration_ms=0,
        truncated=False,
    )


def close_open(session_id: UUID, turn_id: UUID, result: str, *, fence: int | None = None) -> list[Event]:
    """Leave nothing open of a turn that nobody goes on with; what clients must be told of it (A3.5)."""
    closed = history.close_open_rows(session_id, turn_id, result, grow=_grown, fence=fence)
    happened: list[Event] = [_final(str(row_id), kind) for row_id, kind in closed.ended]
    for view in queries.views(closed.results):
        content = view.content
        assert isinstance(content, ToolResultContent)
        happened.append(
            ToolFinished(
                call_id=content.call_id,
                row_id=view.id,
                success=content.success,
                duration_ms=content.duration_ms,
                preview=content.preview,
                truncated=content.truncated,
                message=view,
            )
        )
    return happened


def _grown(session_id: str, checkpoints: dict[str, str]) -> dict[str, str]:
    """What the log knows beyond the checkpoints; without Redis the checkpoints are what is left."""
    try:
        return queries.present_text(session_id, checkpoints)
    except RedisDown:
        return checkpoints


def _final(row_id: str, kind: str) -> ReasoningEnded | TextEnded:
    ended = ReasoningEnded if kind == "reasoning" else TextEnded
    return ended(block_id=row_id, row_id=row_id)


def row_uuid(row: Row) -> UUID:
    return UUID(row.id)
