"""A worker's way into the logs: what its turns have to tell, in batches, a few dozen times a second (T8.5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from copilot import events
from copilot.events import Event, ReasoningExtended, TextExtended
from copilot.live.client import RedisDown, on_loop, script_on_loop, source
from copilot.live.lease import Parting, Release, parting
from copilot.live.stream import Batch, arguments
from copilot.pacing import TIMER_SECONDS, due_after, phase_of

log = logging.getLogger(__name__)

BATCH_EVENTS = 512  # at most this many events in one script: Redis serves others in between
RENEW_SECONDS = 600  # how often a log's lifetime is pushed forward
UNKNOWN_SECONDS = 0.1
SHUT = float("inf")


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
    released: asyncio.Future[Parting] | None = None
    phase: float = field(init=False)
    due_at: float = SHUT  # until the log knows our fence; the turn goes on meanwhile
    renewed_at: float = -RENEW_SECONDS - 1.0
    number: int = 0  # of the batch sent last
    unanswered: tuple[list[Event], Batch] | None = None  # sent, and it may have come through

    def __post_init__(self) -> None:
        self.phase = phase_of(self.turn_id)

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

    def released_as(self, parting: Parting) -> None:
        self.release = None
        if self.released is not None and not self.released.done():
            self.released.set_result(parting)

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
        self._rings_at = SHUT
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
        else:
            self._arm(outbox.due_at)

    async def finish(self, outbox: Outbox, release: Release) -> Parting:
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
        """Wake up when the next outbox is due."""
        if due_at >= self._rings_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = due_at
        delay = max(0.0, due_at + TIMER_SECONDS - time.monotonic())  # first come those who read on this beat
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, SHUT
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
            self._arm(min((outbox.due_at for outbox in self._ready), default=SHUT))

    async def _send(self, due: list[Outbox], now: float) -> None:
        sending = [(outbox, outbox.next(now)) for outbox in due]
        names, args = arguments([batch for _, (_, batch) in sending])
        releasing = [outbox for outbox in due if outbox.release is not None and not outbox.waiting]
        try:
            answers, partings = await _evaluate(names, args, [outbox.release for outbox in releasing])
        except Exception:
            for outbox, sent in sending:
                outbox.unanswered = sent
            raise
        for (outbox, (events_, _)), answer in zip(sending, answers, strict=True):
            self._settle(outbox, events_, answer, now)
        for outbox, parted in zip(releasing, partings, strict=True):
            outbox.released_as(parted)
            self._rest(outbox)
        self._idle.set()

    def _settle(self, outbox: Outbox, sent: list[Event], answer: bytes, now: float) -> None:
        if answer == b"unknown":
            outbox.put_back(sent)
            outbox.due_at = now + UNKNOWN_SECONDS
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
        outbox.due_at = 0.0 if urgent else due_after(now, outbox.phase)
        if urgent:
            self._wake.set()
        self._rest(outbox)

    def _rest(self, outbox: Outbox) -> None:
        """Nothing is left to do for it, for now."""
        if not outbox.waiting and outbox.release is None:
            self._ready.pop(outbox, None)


async def _evaluate(
    names: list[str], args: list[str | bytes | int], releases: Sequence[Release | None]
) -> tuple[list[bytes], list[Parting]]:
    """Publish, and let sessions go in the same transaction: nobody sees the one without the other."""
    if not releases:
        return await script_on_loop("publish")(keys=names, args=args), []
    async with on_loop().pipeline(transaction=True) as pipe:
        pipe.eval(source("publish"), len(names), *names, *args)
        for release in releases:
            assert release is not None
            held = release.keys()
            pipe.eval(source("take_or_release"), len(held), *held, *release.args())
        answers, *partings = await pipe.execute()
    return answers, [parting(one) for one in partings]
