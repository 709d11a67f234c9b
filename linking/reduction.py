"""What a bot is told of an event: a closed list of kinds, and of each nothing but the fields named here (L13).

Never reasoning, tools' arguments and outputs, usage, money or prompts: a field is told because somebody listed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from copilot.events import JSON, tool_label

Fields = Mapping[str, JSON]
Told = dict[str, JSON]

ENVELOPE = ("kind", "session_id", "turn_id", "cursor", "at")
SHOWN_ARGUMENTS, ARGUMENT_CHARACTERS = 6, 120  # of a call that waits for a person: what its card shows (A9.3)


def reduced(event: Fields) -> Told | None:
    """The event as bots get it; None for every kind that is not listed."""
    reduce = KINDS.get(str(event.get("kind")))
    if reduce is None:
        return None
    return _only(event, *ENVELOPE) | reduce(event)


def _only(fields: Fields, *names: str) -> Told:
    return {name: fields[name] for name in names if name in fields}


def _keep(*names: str) -> Callable[[Fields], Told]:
    return lambda event: _only(event, *names)


def _each(values: JSON, reduce: Callable[[Fields], Told]) -> list[JSON]:
    assert isinstance(values, list)
    return [reduce(value) for value in values if isinstance(value, dict)]


def _within(event: Fields, name: str) -> Fields:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


# --- one kind each -----------------------------------------------------------------------------------


def _message(message: Fields) -> Told:
    files = _each(message["attachments"], _keep("file_id", "name", "type", "size"))
    return _only(message, "id", "turn_id", "kind", "content", "author", "created_at") | {"attachments": files}


def _message_added(event: Fields) -> Told:
    return {"message": _message(_within(event, "message"))}


def _tool_called(event: Fields) -> Told:
    return {"id": event["call_id"], "label": tool_label(str(event["tool"])), "state": "running"}


def _tool_finished(event: Fields) -> Told:
    called = _within(_within(event, "message"), "content")
    return {
        "id": event["call_id"],
        "label": tool_label(str(called.get("tool", ""))),
        "state": "done" if event["success"] else "failed",
        "duration_ms": event["duration_ms"],
    }


def _approval(approval: Fields) -> Told:
    """What the card shows, which money is no part of (A19.8)."""
    arguments = list(_within(approval, "arguments").items())[:SHOWN_ARGUMENTS]
    shown: Told = {name[:ARGUMENT_CHARACTERS]: str(value)[:ARGUMENT_CHARACTERS] for name, value in arguments}
    return {
        "id": approval["id"],
        "label": tool_label(str(approval["tool"])),
        "summary": approval["reason"],
        "shown": shown,
    }


def _approval_requested(event: Fields) -> Told:
    return {"approvals": _each(event["approvals"], _approval)}


_question = _keep("id", "question", "choices", "allow_text", "deadline")


def _question_asked(event: Fields) -> Told:
    return {"question": _question(_within(event, "question"))}


def _snapshot(event: Fields) -> Told:
    """Whose messages are among them, the reader has seen to."""
    turn = event.get("turn")
    rows = [*_rows(event["messages"]), *(_rows(turn["messages"]) if isinstance(turn, dict) else [])]
    return {
        "reset": event["reset"],
        "state": event["state"],
        "messages": [_message(row) for row in rows if row["kind"] in TOLD_ROWS],
        "turn": _only(turn, "id", "status", "run_ids") if isinstance(turn, dict) else None,
        "approvals": _each(event["approvals"], _approval),
        "questions": _each(event["questions"], _question),
    }


TOLD_ROWS = ("user", "assistant")


def _rows(values: JSON) -> list[Fields]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


KINDS: dict[str, Callable[[Fields], Told]] = {
    "session.snapshot": _snapshot,
    "turn.queued": _keep("run_ids"),
    "turn.started": _keep("run_ids", "resumed"),
    "turn.heartbeat": _keep("phase", "elapsed_seconds"),
    "turn.throttled": _keep("reason"),
    "turn.recovering": _keep("attempt"),
    "turn.paused": _keep("approvals"),
    "message.added": _message_added,
    "notice.posted": _keep("row_id", "code", "label", "hint", "action"),
    "limit.reached": _keep("queued", "resets_at"),
    "text.started": _keep("block_id", "row_id"),
    "text.extended": _keep("block_id", "row_id", "offset", "delta"),
    "text.ended": _keep("block_id", "row_id"),
    "step.retracted": _keep("row_ids"),
    "artifact.added": _keep("file_id", "name", "type", "size"),
    "tool.called": _tool_called,
    "tool.finished": _tool_finished,
    "approval.requested": _approval_requested,
    "approval.decided": _keep("approval_id", "state", "by"),
    "question.asked": _question_asked,
    "question.closed": _keep("question_id", "outcome"),
    "turn.succeeded": _keep("run_ids", "limit_code"),
    "turn.failed": _keep("run_ids", "code"),
    "turn.cancelled": _keep("run_ids", "reason"),
}
