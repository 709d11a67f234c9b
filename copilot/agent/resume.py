"""After a lost worker or a pause: what the run left open, and how the next one goes on from there (T9.1, A3.9)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from config.core.json_values import JSON
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent.guards import CompletedToolGroup
from copilot.agent.outputs import ToolResultAdded
from copilot.chat import messages
from copilot.chat import selectors as chat_selectors
from copilot.chat.approvals import CallDecision
from copilot.chat.message_rows import MessageRow
from copilot.chat.prompt_tags import escape_server_tags
from copilot.providers.base import ToolCall
from copilot.realtime import event_log
from copilot.realtime.events import Event, ReasoningEnded, TextEnded, ToolFinished, ToolStateChanged
from copilot.realtime.payloads import ToolResultContent
from copilot.tools.argument_previews import redact_arguments
from copilot.tools.base import ToolCallOutcome
from copilot.tools.calls import make_error_outcome

MAX_EDITED_ARGUMENTS_CHARACTERS = 2_000
EDITED_NOTE = "The user changed the arguments of this call before approving it. It ran with:"
DECLINED_RESULT = "Not executed: the user declined this call."
INTERRUPTED_RESULT = (
    "Interrupted, outcome unknown: the worker was lost while this ran. It has not been run again."
)


@dataclass(frozen=True, kw_only=True)
class ResumePlan:
    """How to go on."""

    rows: tuple[MessageRow, ...]  # with the text the log knew beyond the last checkpoint
    interrupted_row: MessageRow | None = None  # an answer that was cut off: the next text goes on in it
    finished: tuple[MessageRow, ...] = ()  # rows that were streaming and are complete as they stand
    pending_calls: tuple[ToolCall, ...] = ()  # to run now: approved since, or repeatable
    approved: frozenset[str] = frozenset()  # ids of open calls that somebody agreed to and that never ran
    begun: frozenset[str] = frozenset()  # ids of open calls that somebody agreed to and a lost worker began
    notes: Mapping[str, str] = field(default_factory=dict)  # for the model, before a call's result
    results: tuple[ToolResultAdded, ...] = ()  # for calls that are not run (again) by the platform
    answered: bool = False  # the answer stood; only the ending was lost
    groups: tuple[CompletedToolGroup, ...] = ()  # of the turn, whole ones, since the last summary


def plan_resume(
    rows: Sequence[MessageRow],
    *,
    turn_id: str,
    texts: Mapping[str, str],
    repeatable: Collection[str],
    never_unasked: Collection[str] = (),
    standings: Mapping[str, CallDecision],
) -> ResumePlan:
    """Judge the rows of an interrupted or paused turn.

    `texts` are the present texts of streaming rows, by id; `standings` what was decided about calls, by call id.
    """
    present = [replace(row, content=texts[row.id]) if row.id in texts else row for row in rows]
    own = [row for row in present if row.turn_id == turn_id]
    streaming = [row for row in own if row.streaming]
    last = own[-1] if own else None
    continuing = (
        last if last is not None and last.streaming and last.kind == "assistant" and last.content else None
    )
    open_calls = _find_open_calls(own)
    judged = [
        _judge_decided_call(call, standings[call.call_id], repeatable)
        if call.call_id in standings
        else _judge_unasked_call(call, {*repeatable, *never_unasked})
        for call in open_calls
    ]
    results = tuple(one for one in judged if isinstance(one, ToolResultAdded))
    whole = (*present, *(_build_result_row(made, turn_id) for made in results))
    agreed = [standings[call.call_id] for call in open_calls if call.call_id in standings]
    return ResumePlan(
        rows=whole,
        interrupted_row=continuing,
        finished=tuple(row for row in streaming if row is not continuing),
        pending_calls=tuple(one for one in judged if isinstance(one, ToolCall)),
        approved=frozenset(one.call_id for one in agreed if one.state == "approved"),
        begun=frozenset(one.call_id for one in agreed if one.state == "running"),
        notes={one.call_id: build_edited_note(one.arguments) for one in agreed if one.edited},
        results=results,
        answered=last is not None and last.kind == "assistant" and not last.streaming and bool(last.content),
        groups=collect_tool_groups(row for row in whole if row.turn_id == turn_id),
    )


def collect_tool_groups(own: Iterable[MessageRow]) -> tuple[CompletedToolGroup, ...]:
    """All calls of a reply stand before its first result; those with a call that is still open are left out."""
    calls: list[dict[str, ToolCall]] = [{}]
    outcomes: list[dict[str, ToolCallOutcome]] = [{}]
    for row in own:
        if row.kind == "tool_call":
            if outcomes[-1]:
                calls.append({})
                outcomes.append({})
            calls[-1][row.call_id or ""] = _call_from_row(row)
        elif row.kind == "tool_result" and row.call_id in calls[-1]:
            outcomes[-1][row.call_id] = _outcome_from_row(row)
    return tuple(
        CompletedToolGroup(calls=tuple(made.values()), outcomes=got)
        for made, got in zip(calls, outcomes, strict=True)
        if got and made.keys() == got.keys()
    )


def _outcome_from_row(row: MessageRow) -> ToolCallOutcome:
    return ToolCallOutcome(
        call_id=row.call_id or "",
        tool=str(row.data.get("tool")),
        success=row.data.get("success") is not False,
        content=row.content,
        preview="",
        duration_ms=0,
        truncated=False,
        digest=str(row.data.get("digest", "")),
    )


def _find_open_calls(own: Sequence[MessageRow]) -> list[ToolCall]:
    answered = {row.call_id for row in own if row.kind == "tool_result"}
    return [_call_from_row(row) for row in own if row.kind == "tool_call" and row.call_id not in answered]


def _call_from_row(row: MessageRow) -> ToolCall:
    """As the model made it: of one whose arguments were no JSON only the raw text was kept (A8.2)."""
    arguments = None if "raw" in row.data else _stored_arguments(row.data)
    return ToolCall(call_id=row.call_id or "", tool=str(row.data["tool"]), arguments=arguments)


def _judge_unasked_call(call: ToolCall, may_run: Collection[str]) -> ToolCall | ToolResultAdded:
    """A lost worker may have begun it, unless its tool never runs unasked: then it asks now."""
    return call if call.tool in may_run else _error_result(call, INTERRUPTED_RESULT)


def _judge_decided_call(
    call: ToolCall, standing: CallDecision, repeatable: Collection[str]
) -> ToolCall | ToolResultAdded:
    """It runs as it was agreed to; one that a lost worker began runs again only if it may (A11.10)."""
    if standing.state == "rejected":
        return _error_result(call, format_declined(standing.feedback))
    if standing.state == "approved" or call.tool in repeatable:
        return replace(call, arguments=standing.arguments)
    return _error_result(call, INTERRUPTED_RESULT)


def _error_result(call: ToolCall, text: str) -> ToolResultAdded:
    return ToolResultAdded(row_id=uuid4(), outcome=make_error_outcome(call, text))


def format_declined(feedback: str) -> str:
    return f"{DECLINED_RESULT} The user says: {feedback}" if feedback else DECLINED_RESULT


def build_edited_note(arguments: Mapping[str, JSON]) -> str:
    """What the model must know before the result of a call that is not quite its own (A11.6)."""
    text = json.dumps(redact_arguments(arguments), ensure_ascii=False, sort_keys=True)
    if len(text) > MAX_EDITED_ARGUMENTS_CHARACTERS:
        text = text[: MAX_EDITED_ARGUMENTS_CHARACTERS - 1] + "…"
    return f"{EDITED_NOTE}\n{escape_server_tags(text)}\n\n"


def _stored_arguments(data: Mapping[str, JSON]) -> dict[str, JSON]:
    arguments = data.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _build_result_row(made: ToolResultAdded, turn_id: str) -> MessageRow:
    """The row as the model will read it, before it is stored."""
    outcome = made.outcome
    return MessageRow(
        id=str(made.row_id),
        kind="tool_result",
        content=outcome.content,
        call_id=outcome.call_id,
        turn_id=turn_id,
        data={"tool": outcome.tool, "success": outcome.success},
    )


def close_unfinished_work(
    session_id: UUID, turn_id: UUID, result: str, *, fence: int | None = None, cancelled: bool = False
) -> list[Event]:
    """Leave nothing open of a turn that nobody goes on with; what clients must be told of it (A3.5).

    `cancelled`: because a person wanted it so (A9.4).
    """
    closed = messages.close_open_messages(
        session_id, turn_id, result, grow=_read_logged_text, fence=fence, cancelled=cancelled
    )
    happened: list[Event] = [_end_event(str(row_id), kind) for row_id, kind in closed.ended]
    for view in chat_selectors.serialize_messages_by_id(closed.results):
        content = view.content
        assert isinstance(content, ToolResultContent)
        if content.cancelled:
            happened.append(ToolStateChanged(call_id=content.call_id, state="cancelled"))
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


def _read_logged_text(session_id: str, checkpoints: dict[str, str]) -> dict[str, str]:
    """What the log knows beyond the checkpoints; without Redis the checkpoints are what is left."""
    try:
        return event_log.read_streamed_text(session_id, checkpoints)
    except REDIS_OUTAGE_ERRORS:
        return checkpoints


def _end_event(row_id: str, kind: str) -> ReasoningEnded | TextEnded:
    ended = ReasoningEnded if kind == "reasoning" else TextEnded
    return ended(block_id=row_id, row_id=row_id)


def parse_row_id(row: MessageRow) -> UUID:
    return UUID(row.id)
