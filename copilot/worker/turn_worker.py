"""Turns that arrived together become this worker's in one visit to the database (T5.1)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from uuid import UUID

import psycopg
import uvloop
from celery.exceptions import Reject
from django.conf import settings
from django.db import DatabaseError, Error, connection

from billing import policies
from billing.usage import limit_checks
from config.core.db import MAX_DATABASE_OUTAGE_SECONDS, flush_wal, run_in_thread
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent import side_questions
from copilot.agent.endings import Interruption
from copilot.agent.preparation import PreparedTurn, prepare_turn
from copilot.agent.runner import TurnRunner
from copilot.agent.services import CHECKPOINT_SECONDS, ProcessServices
from copilot.chat import announcements, model_calls, turns
from copilot.chat import selectors as chat_selectors
from copilot.chat.service_bindings import wake_worker
from copilot.models import Turn
from copilot.providers import catalogue, clients
from copilot.providers.clients import close_all_clients
from copilot.realtime import stop_signal, turn_queue
from copilot.realtime.events import TurnThrottled
from copilot.tools import registry
from copilot.worker import heartbeat
from copilot.worker.lease_keeper import LeaseKeeper

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ClaimedBatch:
    """The turns to run here, and those that a worker found at a cap for the first time."""

    runs: list[tuple[turns.ClaimedTurn, PreparedTurn | None]]
    throttled: list[UUID]


def claim_and_prepare_turns(turn_ids: list[UUID], worker: str) -> ClaimedBatch:
    """A turn that comes alone is prepared in the same visit; of many, each prepares itself."""
    models = {
        tier: model_calls.TierModel(name=entry.name, provider=entry.provider, model=entry.model)
        for tier, entry in catalogue.get_tier_entries().items()
    }
    found = turns.claim_turns(turn_ids, worker, models)
    for turn_id in found.startable:
        wake_worker(turn_id)
    alone = len(found.claimed) == 1 and not found.claimed[0].stopped
    runs = [(turn, _prepare_or_none(turn) if alone else None) for turn in found.claimed]
    return ClaimedBatch(runs=runs, throttled=found.throttled)


def publish_throttled_turns(turn_ids: list[UUID]) -> None:
    """Tell clients why these turns do not begin yet; those that have begun meanwhile need no word."""
    waiting = Turn.objects.filter(pk__in=turn_ids, status=turns.QUEUED).exclude(throttle="")
    for turn in waiting.select_related("session"):
        event = TurnThrottled(reason=chat_selectors.get_throttle_reason(turn))
        announcements.publish_events(turn.session_id, turn.session.owner_id, [(event, str(turn.pk))])


def _prepare_or_none(turn: turns.ClaimedTurn) -> PreparedTurn | None:
    """None when it failed: the claimed turn is ours all the same, and its run tries again and can end it."""
    try:
        return prepare_turn(turn)
    except Exception:
        log.exception("turn %s could not be prepared at once", turn.turn_id)
        return None


# MERGED engine: A worker process's event loop: takes turns, keeps them alive, hears stops, and drains (T4, T5).

LEASE_RENEW_SECONDS = 10.0
HOLD_RENEW_SECONDS = 240.0  # a hold lives fifteen minutes (B6.7)
STOP_POLL_SECONDS = 0.5  # a lost broadcast costs half a second (A1.4)
WATCH_INTERVAL_SECONDS = 1.0
THROTTLE_RETRY_SECONDS = 0.5  # longer than the statement that ends a turn takes
MAX_BATCH_TURNS = 32
LISTENING_TIMEOUT_SECONDS = (
    3.0  # wake-ups are asked for every second; silent for longer, the worker counts as deaf
)
START_TIMEOUT_SECONDS = 30.0
START_RETRY_SECONDS = 1.0
CLAIM_HEAD_START_SECONDS = 0.001  # as long as a claim takes to reach the database
INTERRUPT_TIMEOUT_SECONDS = 8.0  # an interrupted run is over by then: its final writes get 5


class TurnWorker:
    """One per process, on a thread of its own."""

    def __init__(self, queues: list[str]) -> None:
        self.identity = heartbeat.create_worker_identity()
        self._slots = threading.BoundedSemaphore(settings.TURNS_PER_PROCESS)
        self._runs: dict[str, TurnRunner] = {}
        self._lease_keeper = LeaseKeeper(self._runs, self._spawn)
        self._arrived: list[UUID] = []
        self._claiming: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._heartbeat = heartbeat.HeartbeatThread(
            self.identity, self._list_running, queues, is_listening=self._is_listening
        )
        self._heard_at: float | None = None  # when Redis last answered the question for wake-ups
        self._services: ProcessServices | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- from Celery's threads -------------------------------------------------------------------

    def start(self) -> None:
        clients.load_sdks(catalogue.list_entries())
        registry.list_unavailable_tools()  # asks the sandbox once whether it works here
        self._heartbeat.start_heartbeat()  # first: while a server is away this fails, and leaves nothing behind
        ready: Future[None] = Future()
        try:
            threading.Thread(target=self._run_loop, args=[ready], name="engine", daemon=True).start()
            ready.result(timeout=START_TIMEOUT_SECONDS)
        except BaseException:
            self._heartbeat.stop_heartbeat()
            raise

    def close_loop(self) -> None:
        """Close what the constructor opened, after a start that failed."""
        if not self._loop.is_running():
            self._loop.close()

    def accept_turn(self, turn_id: UUID) -> None:
        """Run a turn here. At the cap the caller waits, so the process takes no more (T5.2)."""
        while not self._slots.acquire(timeout=1.0):
            if self._draining:
                raise Reject("draining", requeue=True)
        if self._draining:
            self._slots.release()
            raise Reject("draining", requeue=True)
        self._loop.call_soon_threadsafe(self._add_arrived, turn_id)

    def answer_side_question(self, session_id: UUID, side_id: str) -> None:
        """Beside the turns, in nobody's place; lost with the process (A30.3)."""
        asyncio.run_coroutine_threadsafe(side_questions.answer_side_question(session_id, side_id), self._loop)

    def start_listening(self) -> None:
        """Take turns from the list of wake-ups too, as long as there is room for them."""
        asyncio.run_coroutine_threadsafe(self._create_listener(), self._loop).result(timeout=5)

    def seconds_since_heard(self) -> float:
        """How long ago the list of wake-ups was heard last; infinite before the first time."""
        return inf if self._heard_at is None else time.monotonic() - self._heard_at

    def _is_listening(self) -> bool:
        return self.seconds_since_heard() < LISTENING_TIMEOUT_SECONDS

    def drain(self, grace_seconds: float) -> None:
        """Take nothing new, finish what ends in time, hand the rest over (T9.4)."""
        self._draining = True
        self._loop.call_soon_threadsafe(self._stop_listening)
        self._heartbeat.mark_draining()
        deadline = time.monotonic() + grace_seconds
        while self._runs and time.monotonic() < deadline:
            time.sleep(0.05)
        asyncio.run_coroutine_threadsafe(self._hand_over_all(), self._loop).result(timeout=15)
        self._heartbeat.stop_heartbeat()

    def _list_running(self) -> list[tuple[str, int]]:
        """What the beat says we run: not what was told to end and did not, which others may have (D2)."""
        late = time.monotonic() - INTERRUPT_TIMEOUT_SECONDS
        return [
            (turn_id, run.turn.fence)
            for turn_id, run in tuple(self._runs.items())
            if run.interrupted_at is None or run.interrupted_at > late
        ]

    # --- the loop --------------------------------------------------------------------------------

    def _run_loop(self, ready: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start_background_tasks())
        except BaseException as problem:
            ready.set_exception(problem)
            raise
        ready.set_result(None)
        self._loop.run_forever()

    async def _start_background_tasks(self) -> None:
        self._services = services = ProcessServices(
            self._lease_keeper.handle_refused_publish, self._lease_keeper.handle_redis_recovered
        )
        self._spawn(services.publisher.run())
        self._spawn(self._repeat(CHECKPOINT_SECONDS, services.checkpoint_all))
        self._spawn(self._repeat(LEASE_RENEW_SECONDS, self._lease_keeper.renew_all))
        self._spawn(self._repeat(HOLD_RENEW_SECONDS, self._renew_holds))
        self._spawn(self._repeat(STOP_POLL_SECONDS, self._poll_stop_marks))
        self._spawn(self._repeat(WATCH_INTERVAL_SECONDS, self._watch_runs))
        if settings.METER_SECONDS:
            self._spawn(self._repeat(settings.METER_SECONDS, self._meter_runs))
        self._spawn(self._repeat(LEASE_RENEW_SECONDS, self._close_unused_clients))
        self._spawn(self._listen_for_stops())
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector looks at turns alone

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """For ever: all turns of the process rest on these, so whatever one meets, it comes again."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except (DatabaseError, *REDIS_OUTAGE_ERRORS) as problem:
                log.warning("a server is away, trying again: %s", type(problem).__name__)
            except Exception:
                log.exception("%s failed, and is tried again", act.__name__)

    # --- taking turns ----------------------------------------------------------------------------

    async def _create_listener(self) -> None:
        self._listening = asyncio.create_task(self._listen_forever(), name="wake-ups")

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen_forever(self) -> None:
        bell = turn_queue.TurnQueueReader()
        try:
            while True:
                try:
                    await self._take_wakeups(bell)
                except Exception as problem:  # a worker that hears nothing is of no use
                    log.warning("wake-ups are not heard for a moment: %s", type(problem).__name__)
                    await bell.close()
                    await asyncio.sleep(0.2)
        finally:
            await bell.close()

    async def _take_wakeups(self, bell: turn_queue.TurnQueueReader) -> None:
        room = settings.TURNS_PER_PROCESS - len(self._runs)
        if room <= 0:
            self._heard_at = time.monotonic()
            await asyncio.sleep(0.02)  # full: others take them
            return
        first = await bell.wait_for_turn()
        self._heard_at = time.monotonic()
        if first is None:
            return
        await self._accept_or_return(first)
        await asyncio.sleep(
            CLAIM_HEAD_START_SECONDS
        )  # it is being claimed, undisturbed, before we look for more
        for turn_id in await bell.take_more(min(room, MAX_BATCH_TURNS) - 1):
            await self._accept_or_return(turn_id)

    async def _accept_or_return(self, turn_id: UUID) -> None:
        if self._slots.acquire(blocking=False):
            self._add_arrived(turn_id)
        else:
            await run_in_thread(turn_queue.push_wakeup, turn_id)

    def _add_arrived(self, turn_id: UUID) -> None:
        self._arrived.append(turn_id)
        if self._claiming is None:
            self._claiming = self._loop.create_task(self._claim_arrived())

    async def _claim_arrived(self) -> None:
        """All turns that arrived together are claimed in one statement."""
        try:
            while self._arrived:
                arrived, self._arrived = self._arrived, []
                await self._claim_batch(arrived)
        finally:
            self._claiming = None

    async def _claim_batch(self, turn_ids: list[UUID]) -> None:
        taken = ClaimedBatch(runs=[], throttled=[])
        try:
            taken = await run_in_thread(claim_and_prepare_turns, turn_ids, self.identity.worker)
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
            self._spawn(self._retry_throttled(taken.throttled))
        lasts = self._loop.create_task(_flush_claims(), name="settle") if claimed else None
        for turn, prepared in claimed:
            try:
                self._start_run(turn, prepared, lasts)
            except Exception:
                log.exception("turn %s could not begin here; the sweep gives it to another", turn.turn_id)
                self._slots.release()

    async def _retry_throttled(self, throttled: list[UUID]) -> None:
        """Say why these wait, then try them once more.

        A turn that ended in the same moment may not have seen that they wait. Later endings wake them.
        """
        await run_in_thread(publish_throttled_turns, throttled)
        await asyncio.sleep(THROTTLE_RETRY_SECONDS)
        for turn_id in throttled:
            await run_in_thread(wake_worker, turn_id)

    def _start_run(
        self, turn: turns.ClaimedTurn, prepared: PreparedTurn | None, lasts: asyncio.Task[bool] | None
    ) -> None:
        assert self._services is not None
        run = TurnRunner(turn, self._services, prepared, lasts)
        self._runs[str(turn.turn_id)] = run
        if turn.limit_may_be_used_up and policies.are_holds_enabled():
            self._spawn(run_in_thread(limit_checks.renew_turn_hold, turn.user_id, str(turn.turn_id)))
        task = self._loop.create_task(self._run_turn(run), name=f"turn {turn.turn_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_turn(self, run: TurnRunner) -> None:
        try:
            self._spawn(self._lease_keeper.guard_lease(run))
            await run.run()
        except (DatabaseError, *REDIS_OUTAGE_ERRORS) as problem:
            log.error("turn %s was interrupted by an outage: %s", run.turn.turn_id, type(problem).__name__)
        except Exception:
            log.exception("turn %s broke", run.turn.turn_id)
            await self._end_broken_run(run)
        finally:
            run.recorder.abandon()
            if run.is_closed and policies.are_holds_enabled():
                self._spawn(
                    run_in_thread(limit_checks.release_turn_hold, run.turn.user_id, str(run.turn.turn_id))
                )
            if self._runs.get(str(run.turn.turn_id)) is run:  # else taken over, and by this very process
                del self._runs[str(run.turn.turn_id)]
            self._slots.release()

    async def _end_broken_run(self, run: TurnRunner) -> None:
        """A fault of ours still gives the turn its one ending."""
        try:
            await run.end_after_error()
        except Exception:
            log.exception("turn %s could not be ended; the sweep will", run.turn.turn_id)

    # --- keeping them alive ----------------------------------------------------------------------

    async def _renew_holds(self) -> None:
        if policies.are_holds_enabled():
            for run in tuple(self._runs.values()):
                await run_in_thread(limit_checks.renew_turn_hold, run.turn.user_id, str(run.turn.turn_id))

    async def _poll_stop_marks(self) -> None:
        runs = list(self._runs.values())
        for run, turn_id in zip(
            runs, await stop_signal.read_stop_marks([str(run.turn.session_id) for run in runs]), strict=True
        ):
            if turn_id == str(run.turn.turn_id):
                run.interrupt("stop")

    async def _listen_for_stops(self) -> None:
        while True:
            try:
                async for news in stop_signal.listen_for_stops():
                    if run := self._runs.get(news.turn_id):
                        run.interrupt("stop")
            except Exception as problem:  # the poll of the marks covers the gap
                log.warning("stops are not heard for a moment: %s", type(problem).__name__)
            await asyncio.sleep(0.2)

    async def _meter_runs(self) -> None:
        now = time.monotonic()
        for run in tuple(self._runs.values()):
            run.publish_live_usage(now)

    async def _watch_runs(self) -> None:
        now = time.monotonic()
        for run in tuple(self._runs.values()):
            run.check_progress(now)
        assert self._services is not None
        if self._services.publisher.blocked_seconds > MAX_DATABASE_OUTAGE_SECONDS:
            self._interrupt_all("outage")

    async def _close_unused_clients(self) -> None:
        """Connections under keys that neither the catalogue nor a running turn knows any more (A5.2)."""
        running = [
            entry for run in self._runs.values() if run.loop for entry in (*run.loop.chain, run.loop.entry)
        ]
        await clients.close_unused_clients((*catalogue.list_entries(), *running))

    # --- leaving ---------------------------------------------------------------------------------

    def _interrupt_all(self, why: Interruption) -> None:
        for run in tuple(self._runs.values()):
            run.interrupt(why)

    async def _hand_over_all(self) -> None:
        self._interrupt_all("worker_shutdown")
        while runs := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(runs)
        assert self._services is not None
        await self._services.wait_for_background()
        await self._services.close()
        await close_all_clients()


async def _flush_claims() -> bool:
    """Whether the claims made so far outlive a crash of the database; found out while the model is asked."""
    try:
        await run_in_thread(flush_wal)
    except DatabaseError:
        return False
    return True


_worker: TurnWorker | None = None
_start_lock = threading.Lock()


def start_worker(queues: list[str] | None = None) -> TurnWorker:
    """The process's engine, started at first use."""
    global _worker  # noqa: PLW0603 - one per process, like the process itself
    with _start_lock:
        if _worker is None:
            engine = TurnWorker(queues or ["turns"])
            try:
                engine.start()
            except BaseException:
                engine.close_loop()
                raise
            _worker = engine
    return _worker


def start_worker_when_possible(
    queues: list[str], *, waits: Callable[[], object] = lambda: None
) -> TurnWorker:
    """Start the engine and listen; while a server is away, try again until it is back, and call `waits` each time."""
    while True:
        try:
            engine = start_worker(queues)
            engine.start_listening()
        except (Error, psycopg.Error, *REDIS_OUTAGE_ERRORS) as problem:
            log.error("engine_start_delayed: a server is away (%s), trying again", type(problem).__name__)
            connection.close()
            waits()
            time.sleep(START_RETRY_SECONDS)
        else:
            return engine


def accept_turn(turn_id: UUID) -> None:
    """From a Celery task: the turn is this process's now."""
    start_worker().accept_turn(turn_id)


def answer_side_question(session_id: UUID, side_id: str) -> None:
    start_worker().answer_side_question(session_id, side_id)


def drain_worker() -> None:
    """From Celery's shutdown: leave without losing anything."""
    if _worker is not None:
        _worker.drain(settings.TURN_GRACE_SECONDS)
