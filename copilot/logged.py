"""What a session's log knows beyond the rows: text since a checkpoint, the last word on a step or an ending (T9.1)."""

from __future__ import annotations

from uuid import UUID

from copilot.events import ENDING_KINDS, ReasoningExtended, StepFinished, TextExtended, decode
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Turn

RECENT_EVENTS = 256  # well over what a checkpoint's two seconds can hold

STEP_WORDS = ("step.started", "step.finished", "text.started", "tool.proposed")
WHOLE = ("stop", "length", "tool_calls")  # of a step: what a reply that can be worked with ends with


def reply_is_told(session_id: UUID, turn_id: UUID) -> bool:
    """Whether the log's last word on the turn's steps is that a reply came to its end; no where it cannot be read."""
    name = f'"turn_id":"{turn_id}"'
    try:
        recent = stream.recent(str(session_id), count=RECENT_EVENTS)
    except RedisDown:
        return False
    words = (entry for entry in reversed(recent) if entry.kind in STEP_WORDS and name in entry.payload)
    last = next((decode(entry.payload) for entry in words), None)
    return isinstance(last, StepFinished) and last.finish_reason in WHOLE


def ending_is_told(turn: Turn) -> bool:
    """Whether the log holds the turn's ending; a log that begins after it was lost, and its readers start over."""
    name = f'"turn_id":"{turn.pk}"'
    recent = stream.recent(str(turn.session_id), count=4 * RECENT_EVENTS)
    if turn.ended_at is None or not recent or recent[0].place[0] / 1000 > turn.ended_at.timestamp():
        return True
    return any(entry.kind in ENDING_KINDS and name in entry.payload for entry in recent)


def present_text(session_id: str, checkpoints: dict[str, str]) -> dict[str, str]:
    """Texts of streaming rows, by row id, grown from their checkpoints by the deltas in the log (T9.1).

    Reads back only as far as the checkpoints' age demands: the cost does not grow with the answer.
    """
    count = RECENT_EVENTS
    while True:
        entries = stream.recent(session_id, count=count)
        texts, gap = _grown(checkpoints, entries)
        if not gap or len(entries) < count:
            return texts
        count *= 4


def _grown(checkpoints: dict[str, str], entries: list[stream.Entry]) -> tuple[dict[str, str], bool]:
    texts, gap = dict(checkpoints), False
    for entry in entries:
        if entry.kind not in ("text.extended", "reasoning.extended"):
            continue
        event = decode(entry.payload)
        assert isinstance(event, TextExtended | ReasoningExtended)
        text = texts.get(event.row_id)
        if text is None or event.offset + len(event.delta) <= len(text):
            continue
        if event.offset > len(text):
            gap = True
            continue
        texts[event.row_id] = text[: event.offset] + event.delta
    return texts, gap
