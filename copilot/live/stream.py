"""The event log: one Redis stream per session, written in batches, read from a cursor (T8)."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings

from copilot import events
from copilot.errors import InvalidRequest
from copilot.events import Event
from copilot.live import keys, wakeups
from copilot.live.client import blocking, on_loop, script, source

log = logging.getLogger(__name__)

NO_CURSOR = "0-0"
LATE = "late"
_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_LARGEST = 2**64  # Redis counts no further


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one session, as the publish script takes them."""

    session_id: str
    user_id: int | None
    fence: int | None
    events: Sequence[tuple[str, bytes]]  # kind, payload
    number: int = 0  # of a guarded batch: it is logged once, however often it is sent
    name: str = ""  # of any other, for the same reason
    after: str = ""  # of any other: only if the log still ends at this cursor
    renew: bool = True

    @property
    def guard(self) -> str:
        return keys.mark(self.session_id, self.name) if self.fence is None else keys.fence(self.session_id)


def arguments(batches: Sequence[Batch]) -> tuple[list[str], list[str | bytes | int]]:
    names = [keys.LIVE_NUMBER]
    args: list[str | bytes | int] = [
        keys.LIVE_CHANNEL,
        settings.EVENT_LOG_LENGTH,
        settings.EVENT_LOG_SECONDS,
        len(batches),
    ]
    for batch in batches:
        names += [keys.log(batch.session_id), batch.guard]
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


def publish_now(
    session_id: str,
    happened: Iterable[tuple[Event, str | None]],
    *,
    user_id: int | None = None,
    after: str = "",
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """Log events whose rows already stand, from synchronous code; the cursor of the last one.

    With `after`: only if nothing was logged since that cursor, else the answer is LATE.
    With `name`: only if nothing was logged under it before, else the answer is the cursor of what was.
    `wake` names a turn that wants a worker: it is woken in the same round trip, after the news.
    """
    batch = Batch(
        session_id=session_id,
        user_id=user_id,
        fence=None,
        events=[
            (event.kind, events.encode(event, session_id=session_id, turn_id=turn_id))
            for event, turn_id in happened
        ],
        name=name or secrets.token_hex(8),
        after=after,
    )
    names, args = arguments([batch])
    if wake is None:
        return script("publish")(keys=names, args=args)[0].decode()  # type: ignore[no-any-return]
    with blocking().pipeline(transaction=False) as pipe:
        pipe.eval(source("publish"), len(names), *names, *args)
        pipe.eval(source("wake"), 1, keys.WAKEUPS, *wakeups.arguments(wake))
        answers, _ = pipe.execute()
    return answers[0].decode()  # type: ignore[no-any-return]


# --- reading -----------------------------------------------------------------------------------------


class Entry:
    """One event in its place. Its JSON text is made once, however many sockets send it."""

    __slots__ = ("_text", "cursor", "kind", "payload", "place")

    def __init__(self, cursor: str, kind: str, payload: str) -> None:
        self.cursor = cursor
        self.kind = kind
        self.payload = payload
        self.place = place_of(cursor)
        self._text: str | None = None

    def text(self) -> str:
        if self._text is None:
            self._text = events.place(self.payload, self.cursor)
        return self._text


def check_cursor(cursor: str) -> str:
    if not _CURSOR.fullmatch(cursor) or max(place_of(cursor)) >= _LARGEST:
        raise InvalidRequest("That is not a cursor of this log.", code="invalid_cursor")
    return cursor


def place_of(cursor: str) -> tuple[int, int]:
    milliseconds, _, number = cursor.partition("-")
    return int(milliseconds), int(number)


Raw = tuple[bytes, dict[bytes, bytes]]  # what redis-py gives for a stream's entry; its stubs say less


def entry(raw: Raw) -> Entry:
    identifier, fields = raw
    return Entry(identifier.decode(), fields[b"k"].decode(), fields[b"e"].decode())


def last_cursor(session_id: str) -> str:
    """The place of the newest event; `0-0` when the log is empty."""
    newest = recent(session_id, count=1)
    return newest[0].cursor if newest else NO_CURSOR


def recent(session_id: str, *, count: int, before: str = "+") -> list[Entry]:
    """The newest events, oldest first."""
    raw: list[Raw] = blocking().xrevrange(keys.log(session_id), max=before, count=count)  # type: ignore[assignment]
    return [entry(one) for one in reversed(raw)]


async def after(session_id: str, cursor: str, *, count: int = 1000) -> list[Entry] | None:
    """Events after a cursor, in order; None when the cursor is too old or not of this log (T8.2)."""
    raw: list[Raw] = await on_loop().xrange(keys.log(session_id), min=cursor, count=count + 1)  # type: ignore[assignment]
    found = [entry(one) for one in raw]
    if found and found[0].cursor == cursor:
        return found[1:]
    if cursor == NO_CURSOR and not found:
        return []
    return None
