"""Publish the events of a worker's turns in batches, a few dozen times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from config.core.redis import REDIS_OUTAGE_ERRORS, get_async_redis, get_async_script, load_script_source
from copilot.realtime import events
from copilot.realtime.delta_clock import TIMER_RESOLUTION_SECONDS, get_next_due_at, get_phase
from copilot.realtime.event_log import EventBatch, build_publish_arguments
from copilot.realtime.events import Event, ReasoningExtended, TextExtended
from copilot.realtime.lease import ReleaseResult, SessionRelease, parse_release_result

log = structlog.get_logger(__name__)

MAX_BATCH_EVENTS = 512  # per session and script call, so that Redis can serve others in between
LOG_RENEW_SECONDS = 600  # how often a log's lifetime is extended
UNKNOWN_FENCE_RETRY_SECONDS = 0.1
NOT_DUE = float("inf")


@dataclass(slots=True, eq=False)
class TurnOutbox:
    """The unpublished events of one turn, in order. Adjacent deltas of a block are joined while they wait."""

    session_id: str
    turn_id: str
    user_id: int
    fence: int | None  # None: Postgres has decided these events, and no newer fence may refuse them
    waiting: list[Event] = field(default_factory=list)
    block_id: str = ""  # of the last published delta: the first delta of another block is sent at once
    release: SessionRelease | None = None  # release the session with the last events, in one transaction
    released: asyncio.Future[ReleaseResult] | None = None
    phase: float = field(init=False)
    due_at: float = NOT_DUE  # until the log knows the fence; the turn runs meanwhile
    renewed_at: float = -LOG_RENEW_SECONDS - 1.0
    number: int = 0  # of the last batch
    unanswered: tuple[list[Event], EventBatch] | None = (
        None  # sent without an answer: it may have been logged
    )

    def __post_init__(self) -> None:
        self.phase = get_phase(self.turn_id)

    def add(self, event: Event) -> None:
        if isinstance(event, TextExtended | ReasoningExtended) and self.waiting:
            last = self.waiting[-1]
            if type(last) is type(event) and last.block_id == event.block_id and _is_adjacent(last, event):
                self.waiting[-1] = type(last)(
                    block_id=last.block_id,
                    row_id=last.row_id,
                    offset=last.offset,
                    delta=last.delta + event.delta,
                )
                return
        self.waiting.append(event)

    def next_batch(self, now: float) -> tuple[list[Event], EventBatch]:
        """Return the batch whose answer was lost, unchanged, or else the next one."""
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is not None:
            return unanswered
        taken = self._take_events()
        return taken, self._build_batch(taken, now)

    def _take_events(self) -> list[Event]:
        taken, self.waiting = self.waiting[:MAX_BATCH_EVENTS], self.waiting[MAX_BATCH_EVENTS:]
        for event in taken:
            if isinstance(event, TextExtended | ReasoningExtended):
                self.block_id = event.block_id
        return taken

    def resolve_release(self, result: ReleaseResult) -> None:
        self.release = None
        if self.released is not None and not self.released.done():
            self.released.set_result(result)

    def return_events(self, taken: list[Event]) -> None:
        self.waiting = taken + self.waiting

    def _build_batch(self, taken: list[Event], now: float) -> EventBatch:
        self.number += 1
        return EventBatch(
            session_id=self.session_id,
            user_id=self.user_id,
            fence=self.fence,
            events=[
                (event.kind, events.encode_event(event, session_id=self.session_id, turn_id=self.turn_id))
                for event in taken
            ],
            number=self.number,
            name=f"{self.turn_id}:{self.number}" if self.fence is None else "",
            renew=now - self.renewed_at > LOG_RENEW_SECONDS,
        )


def _is_adjacent(last: TextExtended | ReasoningExtended, event: TextExtended | ReasoningExtended) -> bool:
    return event.offset == last.offset + len(last.delta)


class Publisher:
    """The publisher of a process. It flushes the outboxes of all turns in one script call.

    `on_refused` is called when a log belongs to a newer fence ("refused") or knows no fence ("unknown").
    `on_recovered` is called when Redis is back, because it may have lost its last writes.
    """

    def __init__(
        self, on_refused: Callable[[TurnOutbox, str], None], on_recovered: Callable[[], None]
    ) -> None:
        self._on_refused = on_refused
        self._on_recovered = on_recovered
        self._ready: dict[TurnOutbox, None] = {}  # by outbox, not turn: two runs of one turn may both publish
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at = NOT_DUE
        self._idle = asyncio.Event()
        self._blocked_since: float | None = None

    def create_outbox(self, *, session_id: str, turn_id: str, user_id: int, fence: int) -> TurnOutbox:
        return TurnOutbox(session_id=session_id, turn_id=turn_id, user_id=user_id, fence=fence)

    def enable_outbox(self, outbox: TurnOutbox) -> None:
        """Send the events of this outbox from now on: the log knows the turn's fence."""
        self._flush_soon(outbox)

    def publish(self, outbox: TurnOutbox, event: Event) -> None:
        outbox.add(event)
        self._ready[outbox] = None
        if outbox.due_at == NOT_DUE:
            return
        if not isinstance(event, TextExtended | ReasoningExtended) or event.block_id != outbox.block_id:
            self._flush_soon(outbox)
        else:
            self._schedule_wake(outbox.due_at)

    async def publish_and_release(self, outbox: TurnOutbox, release: SessionRelease) -> ReleaseResult:
        """Publish the remaining events and release the session at once, so that a client that sees the ending finds it free."""
        outbox.released = asyncio.get_running_loop().create_future()
        outbox.release = release
        self._ready[outbox] = None
        if outbox.due_at != NOT_DUE:
            self._flush_soon(outbox)
        return await outbox.released

    def publish_with_next(self, outbox: TurnOutbox, event: Event) -> None:
        """Publish an event with the next batch, without hurrying it or making one of its own."""
        outbox.add(event)
        self._ready[outbox] = None
        self._schedule_wake(outbox.due_at)

    async def flush(self, outbox: TurnOutbox) -> None:
        self._flush_soon(outbox)
        while outbox.waiting or outbox in self._ready:
            self._idle.clear()
            await self._idle.wait()

    @property
    def blocked_seconds(self) -> float:
        return 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since

    def _flush_soon(self, outbox: TurnOutbox) -> None:
        outbox.due_at = 0.0
        self._wake.set()

    def _schedule_wake(self, due_at: float) -> None:
        if due_at >= self._timer_due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_at = due_at
        # A little later than due, so that the model streams read at the same tick come first.
        delay = max(0.0, due_at + TIMER_RESOLUTION_SECONDS - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer, self._timer_due_at = None, NOT_DUE
        self._wake.set()

    async def run(self) -> None:
        """Flush forever. A failing Redis delays events and never breaks a turn."""
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
                        self._on_recovered()
            except Exception as problem:  # all turns of the process depend on this loop
                if self._blocked_since is None:
                    self._blocked_since = now
                    unexpected = None if isinstance(problem, REDIS_OUTAGE_ERRORS) else problem
                    log.warning(
                        "event_log_unreachable", error_kind=type(problem).__name__, exc_info=unexpected
                    )
                await asyncio.sleep(0.25)
                self._wake.set()
            self._schedule_wake(min((outbox.due_at for outbox in self._ready), default=NOT_DUE))

    async def _send(self, due: list[TurnOutbox], now: float) -> None:
        sending = [(outbox, outbox.next_batch(now)) for outbox in due]
        names, args = build_publish_arguments([batch for _, (_, batch) in sending])
        releasing = [outbox for outbox in due if outbox.release is not None and not outbox.waiting]
        try:
            answers, results = await _run_publish_script(
                names, args, [outbox.release for outbox in releasing]
            )
        except Exception:
            for outbox, sent in sending:
                outbox.unanswered = sent
            raise
        for (outbox, (sent_events, _)), answer in zip(sending, answers, strict=True):
            self._handle_answer(outbox, sent_events, answer, now)
        for outbox, result in zip(releasing, results, strict=True):
            outbox.resolve_release(result)
            self._remove_if_done(outbox)
        self._idle.set()

    def _handle_answer(self, outbox: TurnOutbox, sent: list[Event], answer: bytes, now: float) -> None:
        if answer == b"unknown":
            outbox.return_events(sent)
            outbox.due_at = now + UNKNOWN_FENCE_RETRY_SECONDS
            self._on_refused(outbox, "unknown")
            self._remove_if_done(outbox)  # the callback may have cleared it
            return
        if answer == b"refused":
            if (
                outbox.fence is not None
            ):  # else Postgres has decided the waiting events: they are sent all the same
                outbox.waiting.clear()
            self._on_refused(outbox, "refused")
        if now - outbox.renewed_at > LOG_RENEW_SECONDS:
            outbox.renewed_at = now
        urgent = any(
            not isinstance(event, TextExtended | ReasoningExtended) or event.block_id != outbox.block_id
            for event in outbox.waiting
        )
        outbox.due_at = 0.0 if urgent else get_next_due_at(now, outbox.phase)
        if urgent:
            self._wake.set()
        self._remove_if_done(outbox)

    def _remove_if_done(self, outbox: TurnOutbox) -> None:
        if not outbox.waiting and outbox.release is None:
            self._ready.pop(outbox, None)


async def _run_publish_script(
    names: list[str], args: list[str | bytes | int], releases: Sequence[SessionRelease | None]
) -> tuple[list[bytes], list[ReleaseResult]]:
    """Publish, and release sessions in the same transaction, so that nobody sees one without the other."""
    if not releases:
        return await get_async_script("publish_events")(keys=names, args=args), []
    async with get_async_redis().pipeline(transaction=True) as pipe:
        pipe.eval(load_script_source("publish_events"), len(names), *names, *args)
        for release in releases:
            assert release is not None
            keys = release.script_keys()
            pipe.eval(load_script_source("release_or_keep"), len(keys), *keys, *release.script_args())
        answers, *results = await pipe.execute()
    return answers, [parse_release_result(result) for result in results]
