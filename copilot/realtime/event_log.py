"""Append to and read the event log: one Redis stream per session, written in batches, read from a cursor."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings

from config.core.errors import InvalidRequest
from config.core.redis import REDIS_OUTAGE_ERRORS, get_async_redis, get_redis, get_script, load_script_source
from copilot.models import Turn
from copilot.realtime import events, redis_keys, worker_signals
from copilot.realtime.events import (
    ENDING_KINDS,
    Event,
    ReasoningExtended,
    StepFinished,
    TextExtended,
    decode_event,
)

EMPTY_LOG_CURSOR = "0-0"
LOG_MOVED_ON = "late"
RECENT_EVENTS_READ = 256  # well over what is published in the two seconds between checkpoints
STEP_KINDS = ("step.started", "step.finished", "text.started", "tool.proposed")
COMPLETE_FINISH_REASONS = ("stop", "length", "tool_calls")  # of steps whose reply is complete enough to use
_CURSOR_PATTERN = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_CURSOR_PART_LIMIT = 2**64  # the largest number in a stream id


# --- Writing -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one session as the publish script takes them.

    A batch with a fence is fenced: its number makes sure that it is logged once, however often it is sent. For others
    the name does the same.
    """

    session_id: str
    user_id: int | None
    fence: int | None
    events: Sequence[tuple[str, bytes]]  # kind, payload
    number: int = 0  # of a fenced batch
    name: str = ""  # of an unfenced batch
    after: str = ""  # of an unfenced batch: append only if the log still ends at this cursor
    renew: bool = True

    @property
    def guard_key(self) -> str:
        return (
            redis_keys.publish_mark_key(self.session_id, self.name)
            if self.fence is None
            else redis_keys.fence_key(self.session_id)
        )


def build_publish_arguments(batches: Sequence[EventBatch]) -> tuple[list[str], list[str | bytes | int]]:
    names = [redis_keys.LIVE_NUMBER_KEY]
    args: list[str | bytes | int] = [
        redis_keys.LIVE_CHANNEL,
        settings.EVENT_LOG_LENGTH,
        settings.EVENT_LOG_SECONDS,
        len(batches),
    ]
    for batch in batches:
        names += [redis_keys.event_log_key(batch.session_id), batch.guard_key]
        args += [
            batch.session_id,
            "" if batch.user_id is None else batch.user_id,
            "" if batch.fence is None else batch.fence,
            batch.after if batch.fence is None else batch.number,
            "1" if batch.renew else "0",
            len(batch.events),
        ]
        for kind, payload in batch.events:
            args += [kind, payload]
    return names, args


def append_events(
    session_id: str,
    turn_events: Iterable[tuple[Event, str | None]],
    *,
    user_id: int | None = None,
    after: str = "",
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """Append events whose rows are committed, from synchronous code, and return the cursor of the last one.

    With `after`, append only if nothing was logged since that cursor; else return `LOG_MOVED_ON`.
    With `name`, append only if nothing was logged under that name before; else return the cursor of what was.
    `wake` is a turn that needs a worker: the wake-up goes out in the same round trip, after the events.
    """
    batch = EventBatch(
        session_id=session_id,
        user_id=user_id,
        fence=None,
        events=[
            (event.kind, events.encode_event(event, session_id=session_id, turn_id=turn_id))
            for event, turn_id in turn_events
        ],
        name=name or secrets.token_hex(8),
        after=after,
    )
    names, args = build_publish_arguments([batch])
    if wake is None:
        return get_script("publish_events")(keys=names, args=args)[0].decode()  # type: ignore[no-any-return]
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.eval(load_script_source("publish_events"), len(names), *names, *args)
        pipe.eval(
            load_script_source("push_wakeup"),
            1,
            redis_keys.WAKEUPS_KEY,
            *worker_signals.build_wake_arguments(wake),
        )
        answers, _ = pipe.execute()
    return answers[0].decode()  # type: ignore[no-any-return]


# --- Reading -----------------------------------------------------------------------------------------


class LogEntry:
    """One event and its place in the log. Its JSON text is built once, however many sockets send it."""

    __slots__ = ("_text", "cursor", "kind", "payload", "place")

    def __init__(self, cursor: str, kind: str, payload: str) -> None:
        self.cursor = cursor
        self.kind = kind
        self.payload = payload
        self.place = parse_cursor(cursor)
        self._text: str | None = None

    def to_json_text(self) -> str:
        if self._text is None:
            self._text = events.add_cursor_and_time(self.payload, self.cursor)
        return self._text


def check_cursor(cursor: str) -> str:
    if not _CURSOR_PATTERN.fullmatch(cursor) or max(parse_cursor(cursor)) >= _CURSOR_PART_LIMIT:
        raise InvalidRequest("That cursor isn't valid.", code="invalid_cursor")
    return cursor


def parse_cursor(cursor: str) -> tuple[int, int]:
    milliseconds, _, number = cursor.partition("-")
    return int(milliseconds), int(number)


RawEntry = tuple[bytes, dict[bytes, bytes]]  # a stream entry of redis-py, whose stubs are less precise


def parse_entry(raw: RawEntry) -> LogEntry:
    identifier, fields = raw
    return LogEntry(identifier.decode(), fields[b"k"].decode(), fields[b"e"].decode())


def get_last_cursor(session_id: str) -> str:
    """Return the cursor of the newest event; `0-0` when the log is empty."""
    newest = read_recent(session_id, count=1)
    return newest[0].cursor if newest else EMPTY_LOG_CURSOR


def read_recent(session_id: str, *, count: int, before: str = "+") -> list[LogEntry]:
    """Read the newest events, oldest first."""
    raw: list[RawEntry] = get_redis().xrevrange(redis_keys.event_log_key(session_id), max=before, count=count)  # type: ignore[assignment]
    return [parse_entry(entry) for entry in reversed(raw)]


async def read_after(session_id: str, cursor: str, *, count: int = 1000) -> list[LogEntry] | None:
    """Read the events after a cursor, in order; None when the cursor is too old or belongs to another log."""
    raw: list[RawEntry] = await get_async_redis().xrange(
        redis_keys.event_log_key(session_id), min=cursor, count=count + 1
    )  # type: ignore[assignment]
    entries = [parse_entry(entry) for entry in raw]
    if entries and entries[0].cursor == cursor:
        return entries[1:]
    if cursor == EMPTY_LOG_CURSOR and not entries:
        return []
    return None


# --- Recovery: what the log knows and the rows do not ------------------------------------------------


def is_reply_published(session_id: UUID, turn_id: UUID) -> bool:
    """Tell whether the turn's newest step in the log has a complete reply; False when the log cannot be read."""
    turn_field = f'"turn_id":"{turn_id}"'
    try:
        recent = read_recent(str(session_id), count=RECENT_EVENTS_READ)
    except REDIS_OUTAGE_ERRORS:
        return False
    steps = (entry for entry in reversed(recent) if entry.kind in STEP_KINDS and turn_field in entry.payload)
    last = next((decode_event(entry.payload) for entry in steps), None)
    return isinstance(last, StepFinished) and last.finish_reason in COMPLETE_FINISH_REASONS


def is_ending_published(turn: Turn) -> bool:
    """Tell whether the log holds the turn's ending, or begins after it: then readers start from a snapshot anyway."""
    turn_field = f'"turn_id":"{turn.pk}"'
    recent = read_recent(str(turn.session_id), count=4 * RECENT_EVENTS_READ)
    if turn.ended_at is None or not recent or recent[0].place[0] / 1000 > turn.ended_at.timestamp():
        return True
    return any(entry.kind in ENDING_KINDS and turn_field in entry.payload for entry in recent)


def read_streamed_text(session_id: str, checkpoints: dict[str, str]) -> dict[str, str]:
    """Rebuild the texts of streaming rows, by row id, from their checkpoints and the deltas in the log.

    Reads only as far back as the checkpoints are old, so the cost does not grow with the answer.
    """
    count = RECENT_EVENTS_READ
    while True:
        entries = read_recent(session_id, count=count)
        texts, gap = _apply_deltas(checkpoints, entries)
        if not gap or len(entries) < count:
            return texts
        count *= 4


def _apply_deltas(checkpoints: dict[str, str], entries: list[LogEntry]) -> tuple[dict[str, str], bool]:
    texts, gap = dict(checkpoints), False
    for entry in entries:
        if entry.kind not in ("text.extended", "reasoning.extended"):
            continue
        event = decode_event(entry.payload)
        assert isinstance(event, TextExtended | ReasoningExtended)
        text = texts.get(event.row_id)
        if text is None or event.offset + len(event.delta) <= len(text):
            continue
        if event.offset > len(text):
            gap = True
            continue
        texts[event.row_id] = text[: event.offset] + event.delta
    return texts, gap
