"""A worker process's event loop: takes turns, keeps them alive, hears stops, and drains (T4, T5)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from math import inf
from uuid import UUID

import psycopg
import uvloop
from celery.exceptions import Reject
from django.conf import settings
from django.db import DatabaseError, Error, connection

from billing import usage as billing_usage
from copilot import providers, turns, workers
from copilot.agent import side
from copilot.agent.claiming import Taken, claim_and_prepare, publish_throttled
from copilot.agent.preparing import Prepared
from copilot.agent.runs import Interruption
from copilot.agent.services import CHECKPOINT_SECONDS, Services
from copilot.agent.turn import TurnRun
from copilot.bridge import OUTAGE_SECONDS, in_thread
from copilot.holdings import Holdings
from copilot.lasting import settle
from copilot.live import stop, wakeups
from copilot.live.client import RedisDown
from copilot.ports import send_turn
from copilot.providers import aclose_all, catalogue
from copilot.tools import registry

log = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
HOLD_RENEW_SECONDS = 240.0  # a hold lives fifteen minutes (B6.7)
MARK_POLL_SECONDS = 0.5  # a lost broadcast costs half a second (A1.4)
WATCH_SECONDS = 1.0
THROTTLE_LOOK_SECONDS = 0.5  # longer than the statement that ends a turn takes
BATCH_TURNS = 32
DEAF_SECONDS = 3.0  # wake-ups are asked for every second; silent for longer, the worker counts as deaf
START_SECONDS = 30.0
START_AGAIN_SECONDS = 1.0
MORE_SECONDS = 0.001  # as long as a claim takes to reach the database
OBEY_SECONDS = 8.0  # an interrupted run is over by then: its final writes get 5


class Engine:
    """One per process, on a thread of its own."""

    def __init__(self, queues: list[str]) -> None:
        self.identity = workers.new_identity()
        self._slots = threading.BoundedSemaphore(settings.TURNS_PER_PROCESS)
        self._runs: dict[str, TurnRun] = {}
        self._holdings = Holdings(self._runs, self._keep)
        self._arrived: list[UUID] = []
        self._claiming: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._beat = workers.Beat(self.identity, self._running, queues, is_listening=self._is_listening)
        self._heard_at: float | None = None  # when Redis last answered the question for wake-ups
        self._services: Services | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- from Celery's threads -------------------------------------------------------------------

    def start(self) -> None:
        providers.load(catalogue.entries())
        registry.unavailable()  # asks the sandbox once whether it works here
        self._beat.begin()  # first: while a server is away this fails, and leaves nothing behind
        ready: Future[None] = Future()
        try:
            threading.Thread(target=self._live, args=[ready], name="engine", daemon=True).start()
            ready.result(timeout=START_SECONDS)
        except BaseException:
            self._beat.end()
            raise

    def discard(self) -> None:
        """Close what the constructor opened, after a start that failed."""
        if not self._loop.is_running():
            self._loop.close()

    def take(self, turn_id: UUID) -> None:
        """Run a turn here. At the cap the caller waits, so the process takes no more (T5.2)."""
        while not self._slots.acquire(timeout=1.0):
            if self._draining:
                raise Reject("draining", requeue=True)
        if self._draining:
            self._slots.release()
            raise Reject("draining", requeue=True)
        self._loop.call_soon_threadsafe(self._arrive, turn_id)

    def answer_aside(self, session_id: UUID, side_id: str) -> None:
        """Beside the turns, in nobody's place; lost with the process (A30.3)."""
        asyncio.run_coroutine_threadsafe(side.answer(session_id, side_id), self._loop)

    def listen(self) -> None:
        """Take turns from the list of wake-ups too, as long as there is room for them."""
        asyncio.run_coroutine_threadsafe(self._begin_listening(), self._loop).result(timeout=5)

    def silent_seconds(self) -> float:
        """How long ago the list of wake-ups was heard last; infinite before the first time."""
        return inf if self._heard_at is None else time.monotonic() - self._heard_at

    def _is_listening(self) -> bool:
        return self.silent_seconds() < DEAF_SECONDS

    def drain(self, grace_seconds: float) -> None:
        """Take nothing new, finish what ends in time, hand the rest over (T9.4)."""
        self._draining = True
        self._loop.call_soon_threadsafe(self._stop_listening)
        self._beat.drain()
        deadline = time.monotonic() + grace_seconds
        while self._runs and time.monotonic() < deadline:
            time.sleep(0.05)
        asyncio.run_coroutine_threadsafe(self._hand_over_all(), self._loop).result(timeout=15)
        self._beat.end()

    def _running(self) -> list[tuple[str, int]]:
        """What the beat says we run: not what was told to end and did not, which others may have (D2)."""
        late = time.monotonic() - OBEY_SECONDS
        return [
            (turn_id, run.turn.fence)
            for turn_id, run in tuple(self._runs.items())
            if run.interrupted_at is None or run.interrupted_at > late
        ]

    # --- the loop --------------------------------------------------------------------------------

    def _live(self, ready: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._begin())
        except BaseException as problem:
            ready.set_exception(problem)
            raise
        ready.set_result(None)
        self._loop.run_forever()

    async def _begin(self) -> None:
        self._services = services = Services(self._holdings.refused, self._holdings.recovered)
        self._keep(services.publisher.run())
        self._keep(self._every(CHECKPOINT_SECONDS, services.checkpoint))
        self._keep(self._every(RENEW_SECONDS, self._holdings.renew))
        self._keep(self._every(HOLD_RENEW_SECONDS, self._renew_holds))
        self._keep(self._every(MARK_POLL_SECONDS, self._poll_marks))
        self._keep(self._every(WATCH_SECONDS, self._watch))
        if settings.METER_SECONDS:
            self._keep(self._every(settings.METER_SECONDS, self._meter))
        self._keep(self._every(RENEW_SECONDS, self._close_clients))
        self._keep(self._hear_stops())
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector looks at turns alone

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """For ever: all turns of the process rest on these, so whatever one meets, it comes again."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except (DatabaseError, *RedisDown) as problem:
                log.warning("a server is away, trying again: %s", type(problem).__name__)
            except Exception:
                log.exception("%s failed, and is tried again", act.__name__)

    # --- taking turns ----------------------------------------------------------------------------

    async def _begin_listening(self) -> None:
        self._listening = asyncio.create_task(self._listen_for_ever(), name="wake-ups")

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen_for_ever(self) -> None:
        bell = wakeups.Bell()
        try:
            while True:
                try:
                    await self._take_woken(bell)
                except Exception as problem:  # a worker that hears nothing is of no use
                    log.warning("wake-ups are not heard for a moment: %s", type(problem).__name__)
                    await bell.close()
                    await asyncio.sleep(0.2)
        finally:
            await bell.close()

    async def _take_woken(self, bell: wakeups.Bell) -> None:
        room = settings.TURNS_PER_PROCESS - len(self._runs)
        if room <= 0:
            self._heard_at = time.monotonic()
            await asyncio.sleep(0.02)  # full: others take them
            return
        first = await bell.first()
        self._heard_at = time.monotonic()
        if first is None:
            return
        await self._welcome(first)
        await asyncio.sleep(MORE_SECONDS)  # it is being claimed, undisturbed, before we look for more
        for turn_id in await bell.more(min(room, BATCH_TURNS) - 1):
            await self._welcome(turn_id)

    async def _welcome(self, turn_id: UUID) -> None:
        if self._slots.acquire(blocking=False):
            self._arrive(turn_id)
        else:
            await in_thread(wakeups.push, turn_id)

    def _arrive(self, turn_id: UUID) -> None:
        self._arrived.append(turn_id)
        if self._claiming is None:
            self._claiming = self._loop.create_task(self._claim())

    async def _claim(self) -> None:
        """All turns that arrived together are claimed in one statement."""
        try:
            while self._arrived:
                arrived, self._arrived = self._arrived, []
                await self._claim_some(arrived)
        finally:
            self._claiming = None

    async def _claim_some(self, turn_ids: list[UUID]) -> None:
        taken = Taken(runs=[], throttled=[])
        try:
            taken = await in_thread(claim_and_prepare, turn_ids, self.identity.worker)
        except (
            Error
        ) as problem:  # those that were claimed all the same are listed by nobody: the sweep sees them
            log.warning("%d turns wait for the sweep: %s", len(turn_ids), type(problem).__name__)
        except Exception:
            log.exception("%d turns wait for the sweep", len(turn_ids))
        claimed = taken.runs
        for _ in range(len(turn_ids) - len(claimed)):
            self._slots.release()  # taken by another worker, ended, or at a cap
        if taken.throttled:
            self._keep(self._look_again(taken.throttled))
        lasts = self._loop.create_task(_lasts(), name="settle") if claimed else None
        for turn, prepared in claimed:
            try:
                self._run(turn, prepared, lasts)
            except Exception:
                log.exception("turn %s could not begin here; the sweep gives it to another", turn.turn_id)
                self._slots.release()

    async def _look_again(self, throttled: list[UUID]) -> None:
        """Say why these wait, then try them once more.

        A turn that ended in the same moment may not have seen that they wait. Later endings wake them.
        """
        await in_thread(publish_throttled, throttled)
        await asyncio.sleep(THROTTLE_LOOK_SECONDS)
        for turn_id in throttled:
            await in_thread(send_turn, turn_id)

    def _run(self, turn: turns.Claimed, prepared: Prepared | None, lasts: asyncio.Task[bool] | None) -> None:
        assert self._services is not None
        run = TurnRun(turn, self._services, prepared, lasts)
        self._runs[str(turn.turn_id)] = run
        if turn.limit_may_be_used_up and billing_usage.holds_money():
            self._keep(in_thread(billing_usage.renew, turn.user_id, str(turn.turn_id)))
        task = self._loop.create_task(self._play(run), name=f"turn {turn.turn_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, run: TurnRun) -> None:
        try:
            self._keep(self._holdings.guard(run))
            await run.run()
        except (DatabaseError, *RedisDown) as problem:
            log.error("turn %s was interrupted by an outage: %s", run.turn.turn_id, type(problem).__name__)
        except Exception:
            log.exception("turn %s broke", run.turn.turn_id)
            await self._end_broken(run)
        finally:
            run.recorder.abandon()
            if run.closed and billing_usage.holds_money():
                self._keep(in_thread(billing_usage.settle, run.turn.user_id, str(run.turn.turn_id)))
            if self._runs.get(str(run.turn.turn_id)) is run:  # else taken over, and by this very process
                del self._runs[str(run.turn.turn_id)]
            self._slots.release()

    async def _end_broken(self, run: TurnRun) -> None:
        """A fault of ours still gives the turn its one ending."""
        try:
            await run.break_off()
        except Exception:
            log.exception("turn %s could not be ended; the sweep will", run.turn.turn_id)

    # --- keeping them alive ----------------------------------------------------------------------

    async def _renew_holds(self) -> None:
        if billing_usage.holds_money():
            for run in tuple(self._runs.values()):
                await in_thread(billing_usage.renew, run.turn.user_id, str(run.turn.turn_id))

    async def _poll_marks(self) -> None:
        runs = list(self._runs.values())
        for run, turn_id in zip(
            runs, await stop.marks([str(run.turn.session_id) for run in runs]), strict=True
        ):
            if turn_id == str(run.turn.turn_id):
                run.interrupt("stop")

    async def _hear_stops(self) -> None:
        while True:
            try:
                async for news in stop.heard():
                    if run := self._runs.get(news.turn_id):
                        run.interrupt("stop")
            except Exception as problem:  # the poll of the marks covers the gap
                log.warning("stops are not heard for a moment: %s", type(problem).__name__)
            await asyncio.sleep(0.2)

    async def _meter(self) -> None:
        now = time.monotonic()
        for run in tuple(self._runs.values()):
            run.meter(now)

    async def _watch(self) -> None:
        now = time.monotonic()
        for run in tuple(self._runs.values()):
            run.watch(now)
        assert self._services is not None
        if self._services.publisher.blocked_seconds > OUTAGE_SECONDS:
            self._interrupt_all("outage")

    async def _close_clients(self) -> None:
        """Connections under keys that neither the catalogue nor a running turn knows any more (A5.2)."""
        running = [
            entry for run in self._runs.values() if run.loop for entry in (*run.loop.chain, run.loop.entry)
        ]
        await providers.close_unused((*catalogue.entries(), *running))

    # --- leaving ---------------------------------------------------------------------------------

    def _interrupt_all(self, why: Interruption) -> None:
        for run in tuple(self._runs.values()):
            run.interrupt(why)

    async def _hand_over_all(self) -> None:
        self._interrupt_all("worker_shutdown")
        while runs := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(runs)
        assert self._services is not None
        await self._services.settle()
        await self._services.close()
        await aclose_all()


async def _lasts() -> bool:
    """Whether the claims made so far outlive a crash of the database; found out while the model is asked."""
    try:
        await in_thread(settle)
    except DatabaseError:
        return False
    return True


_engine: Engine | None = None
_starting = threading.Lock()


def start(queues: list[str] | None = None) -> Engine:
    """The process's engine, started at first use."""
    global _engine  # noqa: PLW0603 - one per process, like the process itself
    with _starting:
        if _engine is None:
            engine = Engine(queues or ["turns"])
            try:
                engine.start()
            except BaseException:
                engine.discard()
                raise
            _engine = engine
    return _engine


def start_when_possible(queues: list[str], *, waits: Callable[[], object] = lambda: None) -> Engine:
    """Start the engine and listen; while a server is away, try again until it is back, and call `waits` each time."""
    while True:
        try:
            engine = start(queues)
            engine.listen()
        except (Error, psycopg.Error, *RedisDown) as problem:
            log.error("engine_start_delayed: a server is away (%s), trying again", type(problem).__name__)
            connection.close()
            waits()
            time.sleep(START_AGAIN_SECONDS)
        else:
            return engine


def hand_over(turn_id: UUID) -> None:
    """From a Celery task: the turn is this process's now."""
    start().take(turn_id)


def answer_aside(session_id: UUID, side_id: str) -> None:
    start().answer_aside(session_id, side_id)


def drain() -> None:
    """From Celery's shutdown: leave without losing anything."""
    if _engine is not None:
        _engine.drain(settings.TURN_GRACE_SECONDS)
