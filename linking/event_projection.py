"""Project events for bots: a closed list of kinds, each with a closed list of fields.

Reasoning, tool arguments and outputs, usage, money and prompts are never included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from config.core.json_values import JSON
from copilot.realtime.payloads import get_tool_label

EventFields = Mapping[str, JSON]
ProjectedEvent = dict[str, JSON]

ENVELOPE_FIELDS = ("kind", "session_id", "turn_id", "cursor", "at")
SHOWN_ARGUMENTS, ARGUMENT_CHARACTERS = 6, 120  # of a call that waits for approval, as its card shows them


def project_event(event: EventFields) -> ProjectedEvent | None:
    """Return the event as bots get it, or None for kinds that are not listed."""
    reduce = PROJECTIONS.get(str(event.get("kind")))
    if reduce is None:
        return None
    return _pick(event, *ENVELOPE_FIELDS) | reduce(event)


def _pick(fields: EventFields, *names: str) -> ProjectedEvent:
    return {name: fields[name] for name in names if name in fields}


def _make_picker(*names: str) -> Callable[[EventFields], ProjectedEvent]:
    return lambda event: _pick(event, *names)


def _project_each(values: JSON, reduce: Callable[[EventFields], ProjectedEvent]) -> list[JSON]:
    assert isinstance(values, list)
    return [reduce(value) for value in values if isinstance(value, dict)]


def _get_mapping(event: EventFields, name: str) -> EventFields:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


# --- one kind each -----------------------------------------------------------------------------------


def _project_message(message: EventFields) -> ProjectedEvent:
    files = _project_each(message["attachments"], _make_picker("file_id", "name", "type", "size"))
    return _pick(message, "id", "turn_id", "kind", "content", "author", "created_at") | {"attachments": files}


def _project_message_added(event: EventFields) -> ProjectedEvent:
    return {"message": _project_message(_get_mapping(event, "message"))}


def _project_tool_called(event: EventFields) -> ProjectedEvent:
    return {"id": event["call_id"], "label": get_tool_label(str(event["tool"])), "state": "running"}


def _project_tool_finished(event: EventFields) -> ProjectedEvent:
    called = _get_mapping(_get_mapping(event, "message"), "content")
    return {
        "id": event["call_id"],
        "label": get_tool_label(str(called.get("tool", ""))),
        "state": "done" if event["success"] else "failed",
        "duration_ms": event["duration_ms"],
    }


def _project_approval(approval: EventFields) -> ProjectedEvent:
    """Project the approval card without costs."""
    arguments = list(_get_mapping(approval, "arguments").items())[:SHOWN_ARGUMENTS]
    shown: ProjectedEvent = {
        name[:ARGUMENT_CHARACTERS]: str(value)[:ARGUMENT_CHARACTERS] for name, value in arguments
    }
    return {
        "id": approval["id"],
        "label": get_tool_label(str(approval["tool"])),
        "summary": approval["reason"],
        "shown": shown,
    }


def _project_approval_requested(event: EventFields) -> ProjectedEvent:
    return {"approvals": _project_each(event["approvals"], _project_approval)}


_project_question = _make_picker("id", "question", "choices", "allow_text", "deadline")


def _project_question_asked(event: EventFields) -> ProjectedEvent:
    return {"question": _project_question(_get_mapping(event, "question"))}


def _project_snapshot(event: EventFields) -> ProjectedEvent:
    """Project a snapshot whose messages the caller has already filtered."""
    turn = event.get("turn")
    rows = [
        *_as_mappings(event["messages"]),
        *(_as_mappings(turn["messages"]) if isinstance(turn, dict) else []),
    ]
    return {
        "reset": event["reset"],
        "state": event["state"],
        "messages": [_project_message(row) for row in rows if row["kind"] in PROJECTED_MESSAGE_KINDS],
        "turn": _pick(turn, "id", "status", "run_ids") if isinstance(turn, dict) else None,
        "approvals": _project_each(event["approvals"], _project_approval),
        "questions": _project_each(event["questions"], _project_question),
    }


PROJECTED_MESSAGE_KINDS = ("user", "assistant")


def _as_mappings(values: JSON) -> list[EventFields]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


PROJECTIONS: dict[str, Callable[[EventFields], ProjectedEvent]] = {
    "session.snapshot": _project_snapshot,
    "turn.queued": _make_picker("run_ids"),
    "turn.started": _make_picker("run_ids", "resumed"),
    "turn.heartbeat": _make_picker("phase", "elapsed_seconds"),
    "turn.throttled": _make_picker("reason"),
    "turn.recovering": _make_picker("attempt"),
    "turn.paused": _make_picker("approvals"),
    "message.added": _project_message_added,
    "notice.posted": _make_picker("row_id", "code", "label", "hint", "action"),
    "limit.reached": _make_picker("queued", "resets_at"),
    "text.started": _make_picker("block_id", "row_id"),
    "text.extended": _make_picker("block_id", "row_id", "offset", "delta"),
    "text.ended": _make_picker("block_id", "row_id"),
    "step.retracted": _make_picker("row_ids"),
    "artifact.added": _make_picker("file_id", "name", "type", "size"),
    "tool.called": _project_tool_called,
    "tool.finished": _project_tool_finished,
    "approval.requested": _project_approval_requested,
    "approval.decided": _make_picker("approval_id", "state", "by"),
    "question.asked": _project_question_asked,
    "question.closed": _make_picker("question_id", "outcome"),
    "turn.succeeded": _make_picker("run_ids", "limit_code"),
    "turn.failed": _make_picker("run_ids", "code"),
    "turn.cancelled": _make_picker("run_ids", "reason"),
}
