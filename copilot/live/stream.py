"""The event log: one Redis stream per session, written in batches, read from a cursor (T8)."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.conf import settings

from copilot import events
from copilot.errors import InvalidRequest
from copilot.events import Event, ReasoningExtended, TextExtended
from copilot.live import keys, wakeups
from copilot.live.client import RedisDown, blocking, on_loop, script, script_on_loop, source
from copilot.live.lease import Release, Verdict

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.03  # deltas of one session go out at most this often, the first at once (T8.5)
BATCH_EVENTS = 512  # at most this many events in one script: Redis serves others in between
RENEW_SECONDS = 600  # how often a log's lifetime is pushed forward
TICK_SECONDS = 0.01  # sessions that are due about the same time go out together
UNKNOWN_SECONDS = 0.1
SHUT = float("inf")
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


def _arguments(batches: Sequence[Batch]) -> tuple[list[str], list[str | bytes | int]]:
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
    wake: UUID | None = None,
) -> str:
    """Log events whose rows already stand, from synchronous code; the cursor of the last one.

    With `after`: only if nothing was logged since that cursor, else the answer is LATE.
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
        name=secrets.token_hex(8),
        after=after,
    )
    names, args = _arguments([batch])
    if wake is None:
        return script("publish")(keys=names, args=args)[0].decode()  # type: ignore[no-any-return]
    with blocking().pipeline(transaction=False) as pipe:
        pipe.eval(source("publish"), len(names), *names, *args)
        pipe.eval(source("wake"), 1, keys.WAKEUPS, *wakeups.arguments(wake))
        answers, _ = pipe.execute()
    return answers[0].decode()  # type: ignore[no-any-return]


# --- the publisher of a worker process ---------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Outbox:
    """What one turn has to tell, in order; neighbouring deltas of one block grow together while they wait."""

    session_id: str
    turn_id: str
    user_id: int
    fence: int | None  # None: what it tells is decided, and no newer fence may refuse it
    waiting: list[Event] = field(default_factory=list)
    block_id: str = ""  # of the delta told last: the first of another block goes out at once
    release: Release | None = None  # let the session go with the last events, in one transaction
    released: asyncio.Future[Verdict] | None = None
    due_at: float = SHUT  # until the log knows our fence; the turn goes on meanwhile
    renewed_at: float = -RENEW_SECONDS - 1.0
    number: int = 0  # of the batch sent last
    unanswered: tuple[list[Event], Batch] | None = None  # sent, and it may have come through

    def add(self, event: Event) -> None:
        if isinstance(event, TextExtended | ReasoningExtended) and self.waiting:
            last = self.waiting[-1]
            if type(last) is type(event) and last.block_id == event.block_id and _adjoin(last, event):
                self.waiting[-1] = type(last)(
                    block_id=last.block_id,
                    row_id=last.row_id,
                    offset=last.offset,
                    delta=last.delta + event.delta,
                )
                return
        self.waiting.append(event)

    def next(self, now: float) -> tuple[list[Event], Batch]:
        """What to send: the batch whose answer was lost, word for word, else the next one."""
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is not None:
            return unanswered
        taken = self._take()
        return taken, self._batch(taken, now)

    def _take(self) -> list[Event]:
        taken, self.waiting = self.waiting[:BATCH_EVENTS], self.waiting[BATCH_EVENTS:]
        for event in taken:
            if isinstance(event, TextExtended | ReasoningExtended):
                self.block_id = event.block_id
        return taken

    def released_as(self, verdict: Verdict) -> None:
        self.release = None
        if self.released is not None and not self.released.done():
            self.released.set_result(verdict)

    def put_back(self, taken: list[Event]) -> None:
        self.waiting = taken + self.waiting

    def _batch(self, taken: list[Event], now: float) -> Batch:
        self.number += 1
        return Batch(
            session_id=self.session_id,
            user_id=self.user_id,
            fence=self.fence,
            events=[
                (event.kind, events.encode(event, session_id=self.session_id, turn_id=self.turn_id))
                for event in taken
            ],
            number=self.number,
            name=f"{self.turn_id}:{self.number}" if self.fence is None else "",
            renew=now - self.renewed_at > RENEW_SECONDS,
        )


def _adjoin(last: TextExtended | ReasoningExtended, event: TextExtended | ReasoningExtended) -> bool:
    return event.offset == last.offset + len(last.delta)


class Publisher:
    """One per process: flushes the outboxes of all its turns in one script call, a few dozen times a second."""

    def __init__(self, refused: Callable[[Outbox, str], None], recovered: Callable[[], None]) -> None:
        self._refused = refused  # told when the log belongs to a newer fence, or its fence is unknown
        self._recovered = recovered  # told when Redis is back, which may have lost what it was told last
        self._ready: dict[Outbox, None] = {}  # two runs of one turn may both have something to tell
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._blocked_since: float | None = None

    def open(self, *, session_id: str, turn_id: str, user_id: int, fence: int) -> Outbox:
        return Outbox(session_id=session_id, turn_id=turn_id, user_id=user_id, fence=fence)

    def unshut(self, outbox: Outbox) -> None:
        """The log knows this turn's fence: what it has to tell goes out from now on."""
        self._hurry(outbox)

    def publish(self, outbox: Outbox, event: Event) -> None:
        outbox.add(event)
        self._ready[outbox] = None
        if outbox.due_at == SHUT:
            return
        if not isinstance(event, TextExtended | ReasoningExtended) or event.block_id != outbox.block_id:
            self._hurry(outbox)
        elif self._timer is None:
            self._arm(outbox.due_at)

    async def finish(self, outbox: Outbox, release: Release) -> Verdict:
        """Tell what is left and let the session go: whoever hears the ending finds the session free (T4.4)."""
        outbox.released = asyncio.get_running_loop().create_future()
        outbox.release = release
        self._ready[outbox] = None
        if outbox.due_at != SHUT:
            self._hurry(outbox)
        return await outbox.released

    def add(self, outbox: Outbox, event: Event) -> None:
        """Tell it with the next batch: it hurries nothing, and costs no batch of its own while others go out."""
        outbox.add(event)
        self._ready[outbox] = None
        if outbox.due_at != SHUT and self._timer is None:
            self._arm(outbox.due_at)

    async def flush(self, outbox: Outbox) -> None:
        """Wait until everything this turn had to tell is in the log."""
        self._hurry(outbox)
        while outbox.waiting or outbox in self._ready:
            self._idle.clear()
            await self._idle.wait()

    @property
    def blocked_seconds(self) -> float:
        """How long Redis has been refusing what we have to say."""
        return 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since

    def _hurry(self, outbox: Outbox) -> None:
        outbox.due_at = 0.0
        self._wake.set()

    def _arm(self, due_at: float) -> None:
        """Wake up when the next outbox is due; all are within one coalescing window of each other."""
        delay = max(0.0, due_at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake.set()

    async def run(self) -> None:
        """Flush for ever; a failing Redis delays events and never breaks a turn (A3.8)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            now = time.monotonic()
            due = [outbox for outbox in self._ready if outbox.due_at <= now]
            try:
                if due:
                    await self._send(due, now)
                    if self._blocked_since is not None:
                        self._blocked_since = None
                        self._recovered()
            except Exception as problem:  # every turn of the process waits for this loop
                if self._blocked_since is None:
                    self._blocked_since = now
                    surprise = None if isinstance(problem, RedisDown) else problem
                    log.warning(
                        "the event log is unreachable, holding events: %s",
                        type(problem).__name__,
                        exc_info=surprise,
                    )
                await asyncio.sleep(0.25)
                self._wake.set()
            soonest = min((outbox.due_at for outbox in self._ready), default=SHUT)
            if self._timer is None and soonest != SHUT:
                self._arm(soonest)

    async def _send(self, due: list[Outbox], now: float) -> None:
        sending = [(outbox, outbox.next(now)) for outbox in due]
        names, args = _arguments([batch for _, (_, batch) in sending])
        releasing = [outbox for outbox in due if outbox.release is not None and not outbox.waiting]
        try:
            answers, verdicts = await _evaluate(names, args, [outbox.release for outbox in releasing])
        except Exception:
            for outbox, sent in sending:
                outbox.unanswered = sent
            raise
        for (outbox, (events_, _)), answer in zip(sending, answers, strict=True):
            self._settle(outbox, events_, answer, now)
        for outbox, verdict in zip(releasing, verdicts, strict=True):
            outbox.released_as(verdict)
            self._rest(outbox)
        self._idle.set()

    def _settle(self, outbox: Outbox, sent: list[Event], answer: bytes, now: float) -> None:
        if answer == b"unknown":
            outbox.put_back(sent)
            outbox.due_at = now + 0.1
            self._refused(outbox, "unknown")
            self._rest(outbox)  # if it was given up
            return
        if answer == b"refused":
            if outbox.fence is not None:  # else Postgres has decided what waits: it goes out all the same
                outbox.waiting.clear()
            self._refused(outbox, "refused")
        if now - outbox.renewed_at > RENEW_SECONDS:
            outbox.renewed_at = now
        urgent = any(
            not isinstance(event, TextExtended | ReasoningExtended) or event.block_id != outbox.block_id
            for event in outbox.waiting
        )
        outbox.due_at = 0.0 if urgent else _tick_after(now + COALESCE_SECONDS)
        if urgent:
            self._wake.set()
        self._rest(outbox)

    def _rest(self, outbox: Outbox) -> None:
        """Nothing is left to do for it, for now."""
        if not outbox.waiting and outbox.release is None:
            self._ready.pop(outbox, None)


def _tick_after(moment: float) -> float:
    return math.ceil(moment / TICK_SECONDS) * TICK_SECONDS


async def _evaluate(
    names: list[str], args: list[str | bytes | int], releases: Sequence[Release | None]
) -> tuple[list[bytes], list[Verdict]]:
    """Publish, and let sessions go in the same transaction: nobody sees the one without the other."""
    if not releases:
        return await script_on_loop("publish")(keys=names, args=args), []
    pipe = on_loop().pipeline(transaction=True)
    pipe.eval(source("publish"), len(names), *names, *args)
    for release in releases:
        assert release is not None
        held = release.keys()
        pipe.eval(source("take_or_release"), len(held), *held, *release.args())
    answers, *verdicts = await pipe.execute()
    return answers, [verdict.decode() for verdict in verdicts]


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
