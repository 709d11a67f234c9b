"""Plan how to resume a turn after a lost worker or a pause, or close what it left open."""

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
from copilot.tools.base import ToolCallOutcome
from copilot.tools.calls import make_error_outcome
from copilot.tools.results import redact_arguments

MAX_EDITED_ARGUMENTS_CHARACTERS = 2_000
EDITED_NOTE = "The user changed the arguments of this call before approving it. It ran with:"
DECLINED_RESULT = "Not executed: the user declined this call."
INTERRUPTED_RESULT = (
    "Interrupted, outcome unknown: the worker was lost while this ran. It has not been run again."
)


@dataclass(frozen=True, kw_only=True)
class ResumePlan:
    rows: tuple[MessageRow, ...]  # with text that only the event log had
    interrupted_row: MessageRow | None = None  # an answer that was cut off; the next text continues it
    finished: tuple[MessageRow, ...] = ()  # rows that were streaming and are complete as they are
    pending_calls: tuple[ToolCall, ...] = ()  # to run now: approved, or safe to repeat
    approved: frozenset[str] = frozenset()  # ids of open calls that were approved and never ran
    begun: frozenset[str] = frozenset()  # ids of open calls that were approved and begun by a lost worker
    notes: Mapping[str, str] = field(
        default_factory=dict
    )  # by call id; the model reads them before the result
    results: tuple[ToolResultAdded, ...] = ()  # for calls that do not run (again)
    answered: bool = False  # the answer was complete; only the ending was lost
    groups: tuple[CompletedToolGroup, ...] = ()  # complete groups of the turn since the last summary


def plan_resume(
    rows: Sequence[MessageRow],
    *,
    turn_id: str,
    texts: Mapping[str, str],
    repeatable: Collection[str],
    held: Collection[str] = (),
    decisions: Mapping[str, CallDecision],
) -> ResumePlan:
    """Judge the rows of an interrupted or paused turn.

    `texts` holds the latest text of streaming rows, by row id; `decisions` the decisions about calls, by call
    id.
    """
    present = [replace(row, content=texts[row.id]) if row.id in texts else row for row in rows]
    turn_rows = [row for row in present if row.turn_id == turn_id]
    streaming = [row for row in turn_rows if row.streaming]
    last = turn_rows[-1] if turn_rows else None
    interrupted = (
        last if last is not None and last.streaming and last.kind == "assistant" and last.content else None
    )
    open_calls = _find_open_calls(turn_rows)
    verdicts = [
        _judge_decided_call(call, decisions[call.call_id], repeatable)
        if call.call_id in decisions
        else _judge_unasked_call(call, {*repeatable, *held})
        for call in open_calls
    ]
    results = tuple(verdict for verdict in verdicts if isinstance(verdict, ToolResultAdded))
    all_rows = (*present, *(_build_result_row(result, turn_id) for result in results))
    decided = [decisions[call.call_id] for call in open_calls if call.call_id in decisions]
    return ResumePlan(
        rows=all_rows,
        interrupted_row=interrupted,
        finished=tuple(row for row in streaming if row is not interrupted),
        pending_calls=tuple(verdict for verdict in verdicts if isinstance(verdict, ToolCall)),
        approved=frozenset(decision.call_id for decision in decided if decision.state == "approved"),
        begun=frozenset(decision.call_id for decision in decided if decision.state == "running"),
        notes={
            decision.call_id: build_edited_note(decision.arguments) for decision in decided if decision.edited
        },
        results=results,
        answered=last is not None and last.kind == "assistant" and not last.streaming and bool(last.content),
        groups=collect_tool_groups(row for row in all_rows if row.turn_id == turn_id),
    )


def collect_tool_groups(turn_rows: Iterable[MessageRow]) -> tuple[CompletedToolGroup, ...]:
    """Group calls with their results, leaving out groups with an open call.

    All calls of a reply are stored before its first result.
    """
    calls: list[dict[str, ToolCall]] = [{}]
    outcomes: list[dict[str, ToolCallOutcome]] = [{}]
    for row in turn_rows:
        if row.kind == "tool_call":
            if outcomes[-1]:
                calls.append({})
                outcomes.append({})
            calls[-1][row.call_id or ""] = _call_from_row(row)
        elif row.kind == "tool_result" and row.call_id in calls[-1]:
            outcomes[-1][row.call_id] = _outcome_from_row(row)
    return tuple(
        CompletedToolGroup(calls=tuple(group_calls.values()), outcomes=group_outcomes)
        for group_calls, group_outcomes in zip(calls, outcomes, strict=True)
        if group_outcomes and group_calls.keys() == group_outcomes.keys()
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


def _find_open_calls(turn_rows: Sequence[MessageRow]) -> list[ToolCall]:
    answered = {row.call_id for row in turn_rows if row.kind == "tool_result"}
    return [
        _call_from_row(row) for row in turn_rows if row.kind == "tool_call" and row.call_id not in answered
    ]


def _call_from_row(row: MessageRow) -> ToolCall:
    """Rebuild a call as the model made it; invalid JSON arguments were only stored as raw text."""
    arguments = None if "raw" in row.data else _stored_arguments(row.data)
    return ToolCall(call_id=row.call_id or "", tool=str(row.data["tool"]), arguments=arguments)


def _judge_unasked_call(call: ToolCall, may_run: Collection[str]) -> ToolCall | ToolResultAdded:
    """Run a call that nobody decided about only if its tool is repeatable, or is held before it runs."""
    return call if call.tool in may_run else _error_result(call, INTERRUPTED_RESULT)


def _judge_decided_call(
    call: ToolCall, decision: CallDecision, repeatable: Collection[str]
) -> ToolCall | ToolResultAdded:
    """Run a call as it was approved; one that a lost worker began runs again only if it is repeatable."""
    if decision.state == "rejected":
        return _error_result(call, format_declined(decision.feedback))
    if decision.state == "approved" or call.tool in repeatable:
        return replace(call, arguments=decision.arguments)
    return _error_result(call, INTERRUPTED_RESULT)


def _error_result(call: ToolCall, text: str) -> ToolResultAdded:
    return ToolResultAdded(row_id=uuid4(), outcome=make_error_outcome(call, text))


def format_declined(feedback: str) -> str:
    return f"{DECLINED_RESULT} The user says: {feedback}" if feedback else DECLINED_RESULT


def build_edited_note(arguments: Mapping[str, JSON]) -> str:
    text = json.dumps(redact_arguments(arguments), ensure_ascii=False, sort_keys=True)
    if len(text) > MAX_EDITED_ARGUMENTS_CHARACTERS:
        text = text[: MAX_EDITED_ARGUMENTS_CHARACTERS - 1] + "…"
    return f"{EDITED_NOTE}\n{escape_server_tags(text)}\n\n"


def _stored_arguments(data: Mapping[str, JSON]) -> dict[str, JSON]:
    arguments = data.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _build_result_row(result: ToolResultAdded, turn_id: str) -> MessageRow:
    outcome = result.outcome
    return MessageRow(
        id=str(result.row_id),
        kind="tool_result",
        content=outcome.content,
        call_id=outcome.call_id,
        turn_id=turn_id,
        data={"tool": outcome.tool, "success": outcome.success},
    )


def close_unfinished_work(
    session_id: UUID, turn_id: UUID, result: str, *, fence: int | None = None, cancelled: bool = False
) -> list[Event]:
    """Close everything a turn left open that nobody resumes, and return the events for clients.

    `cancelled`: a person wanted it.
    """
    closed = messages.close_open_messages(
        session_id, turn_id, result, read_streamed_text=_read_logged_text, fence=fence, cancelled=cancelled
    )
    events: list[Event] = [_end_event(str(row_id), kind) for row_id, kind in closed.ended]
    for view in chat_selectors.serialize_messages_by_id(closed.results):
        content = view.content
        assert isinstance(content, ToolResultContent)
        if content.cancelled:
            events.append(ToolStateChanged(call_id=content.call_id, state="cancelled"))
        events.append(
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
    return events


def _read_logged_text(session_id: str, checkpoints: dict[str, str]) -> dict[str, str]:
    """Return the text that the event log has beyond the checkpoints; without Redis, the checkpoints."""
    try:
        return event_log.read_streamed_text(session_id, checkpoints)
    except REDIS_OUTAGE_ERRORS:
        return checkpoints


def _end_event(row_id: str, kind: str) -> ReasoningEnded | TextEnded:
    event_class = ReasoningEnded if kind == "reasoning" else TextEnded
    return event_class(block_id=row_id, row_id=row_id)


def parse_row_id(row: MessageRow) -> UUID:
    return UUID(row.id)
