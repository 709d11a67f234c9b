"""Run turns on one event loop per worker process: claim them, keep their leases, obey stops and drain on shutdown."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from uuid import UUID

import psycopg
import structlog
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
from copilot.chat.message_rows import MessageRow
from copilot.models import Turn
from copilot.providers import catalogue, clients
from copilot.providers.clients import close_all_clients
from copilot.realtime import worker_signals
from copilot.realtime.events import TurnThrottled
from copilot.tasks import wake_worker
from copilot.tools import registry
from copilot.worker import heartbeat
from copilot.worker.lease_keeper import LeaseKeeper

log = structlog.get_logger(__name__)

LEASE_RENEW_SECONDS = 10.0
HOLD_RENEW_SECONDS = 240.0  # a hold expires after fifteen minutes
STOP_POLL_SECONDS = 0.5  # upper bound of the delay when a stop broadcast is lost
WATCH_INTERVAL_SECONDS = 1.0
THROTTLE_RETRY_SECONDS = 0.5  # longer than the statement that ends a turn takes
MAX_BATCH_TURNS = 32
# An idle poll for wake-ups is answered after two seconds. A worker without an answer for longer counts as not listening.
LISTENING_TIMEOUT_SECONDS = 3.5
START_TIMEOUT_SECONDS = 30.0
START_RETRY_SECONDS = 1.0
CLAIM_HEAD_START_SECONDS = 0.001  # the time a claim takes to reach the database
INTERRUPT_TIMEOUT_SECONDS = 8.0  # an interrupted run has ended by then: its final writes get 5 seconds


# --- Claiming ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClaimedBatch:
    """The turns to run here, and those that were found throttled for the first time."""

    runs: list[tuple[turns.ClaimedTurn, PreparedTurn | None]]
    throttled: list[UUID]


def claim_and_prepare_turns(turn_ids: list[UUID], worker: str) -> ClaimedBatch:
    """Claim all turns in one statement. A single turn is prepared in the same thread; of several, each run prepares its own."""
    models = {
        tier: model_calls.TierModel(name=entry.name, provider=entry.provider, model=entry.model)
        for tier, entry in catalogue.get_tier_entries().items()
    }
    found = turns.claim_turns(turn_ids, worker, models)
    for turn_id in found.startable:
        wake_worker(turn_id)
    alone = len(found.claimed) == 1 and not found.claimed[0].stopped
    runs = [(turn, _prepare_or_none(turn, found.messages) if alone else None) for turn in found.claimed]
    return ClaimedBatch(runs=runs, throttled=found.throttled)


def publish_throttled_turns(turn_ids: list[UUID]) -> None:
    """Publish why these turns wait. Turns that have started meanwhile are left out."""
    waiting = Turn.objects.queued().filter(pk__in=turn_ids).exclude(throttled_by="")
    for turn in waiting.select_related("session"):
        event = TurnThrottled(reason=chat_selectors.get_throttle_reason(turn))
        announcements.publish_events(turn.session_id, turn.session.owner_id, [(event, str(turn.pk))])


def _prepare_or_none(turn: turns.ClaimedTurn, rows: list[MessageRow] | None) -> PreparedTurn | None:
    """Return None when preparation fails: the turn is claimed all the same, and its run prepares it again or ends it."""
    try:
        return prepare_turn(turn, rows)
    except Exception:
        log.exception("turn_preparation_failed", turn_id=str(turn.turn_id))
        return None


# --- The worker --------------------------------------------------------------------------------------


class TurnWorker:
    """The turns of one process, on an event loop in a thread of its own."""

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
        self._heard_at: float | None = None  # when Redis last answered a poll for wake-ups
        self._services: ProcessServices | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Called from Celery's threads ------------------------------------------------------------

    def start(self) -> None:
        clients.load_sdks(catalogue.list_entries())
        registry.list_unavailable_tools()  # finds out once whether the sandbox works here
        # The heartbeat comes first: it fails while Postgres or Redis is down, and then nothing has to be undone.
        self._heartbeat.start_heartbeat()
        ready: Future[None] = Future()
        try:
            threading.Thread(target=self._run_loop, args=[ready], name="turn worker", daemon=True).start()
            ready.result(timeout=START_TIMEOUT_SECONDS)
        except BaseException:
            self._heartbeat.stop_heartbeat()
            raise

    def close_loop(self) -> None:
        """Close the loop that the constructor opened. For a worker whose start failed."""
        if not self._loop.is_running():
            self._loop.close()

    def accept_turn(self, turn_id: UUID) -> None:
        """Run a turn here. Blocks while all slots are taken, so that Celery delivers no more to this process."""
        while not self._slots.acquire(timeout=1.0):
            if self._draining:
                raise Reject("draining", requeue=True)
        if self._draining:
            self._slots.release()
            raise Reject("draining", requeue=True)
        self._loop.call_soon_threadsafe(self._add_arrived, turn_id)

    def answer_side_question(self, session_id: UUID, side_id: str) -> None:
        """Answer outside the turn slots. The question is lost if this process dies."""
        asyncio.run_coroutine_threadsafe(side_questions.answer_side_question(session_id, side_id), self._loop)

    def start_listening(self) -> None:
        """Also take turns from the list of wake-ups, while slots are free."""
        asyncio.run_coroutine_threadsafe(self._create_listener(), self._loop).result(timeout=5)

    def seconds_since_heard(self) -> float:
        """Return the seconds since Redis last answered a poll for wake-ups; infinite before the first answer."""
        return inf if self._heard_at is None else time.monotonic() - self._heard_at

    def _is_listening(self) -> bool:
        return self.seconds_since_heard() < LISTENING_TIMEOUT_SECONDS

    def drain(self, grace_seconds: float) -> None:
        """Take no new turns, let running ones finish within the grace period, and hand the rest over."""
        self._draining = True
        self._loop.call_soon_threadsafe(self._stop_listening)
        self._heartbeat.mark_draining()
        deadline = time.monotonic() + grace_seconds
        while self._runs and time.monotonic() < deadline:
            time.sleep(0.05)
        asyncio.run_coroutine_threadsafe(self._hand_over_all(), self._loop).result(timeout=15)
        self._heartbeat.stop_heartbeat()

    def _list_running(self) -> list[tuple[str, int]]:
        """List what the heartbeat reports. A run that ignored its interruption is left out: others may take it over."""
        overdue = time.monotonic() - INTERRUPT_TIMEOUT_SECONDS
        return [
            (turn_id, run.turn.fence)
            for turn_id, run in tuple(self._runs.items())
            if run.interrupted_at is None or run.interrupted_at > overdue
        ]

    # --- The event loop --------------------------------------------------------------------------

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
        gc.freeze()  # modules and SDKs stay loaded: the collector need not scan them again

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """Call `act` forever. All turns of the process depend on these loops, so no error ends one."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except (DatabaseError, *REDIS_OUTAGE_ERRORS) as problem:
                log.warning("periodic_job_delayed", job=act.__name__, error_kind=type(problem).__name__)
            except Exception:
                log.exception("periodic_job_failed", job=act.__name__)

    # --- Taking turns ----------------------------------------------------------------------------

    async def _create_listener(self) -> None:
        self._listening = asyncio.create_task(self._listen_forever(), name="wake-ups")

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen_forever(self) -> None:
        reader = worker_signals.TurnQueueReader()
        try:
            while True:
                try:
                    await self._take_wakeups(reader)
                except Exception as problem:  # the worker is useless without wake-ups: any error is retried
                    log.warning("wakeup_poll_failed", error_kind=type(problem).__name__)
                    await reader.close()
                    await asyncio.sleep(0.2)
        finally:
            await reader.close()

    async def _take_wakeups(self, reader: worker_signals.TurnQueueReader) -> None:
        free_slots = settings.TURNS_PER_PROCESS - len(self._runs)
        if free_slots <= 0:
            self._heard_at = time.monotonic()
            await asyncio.sleep(0.02)  # leave them to other workers
            return
        first = await reader.wait_for_turn()
        self._heard_at = time.monotonic()
        if first is None:
            return
        await self._accept_or_return(first)
        # Let the claim of the first turn reach the database before this loop is busy with more.
        await asyncio.sleep(CLAIM_HEAD_START_SECONDS)
        for turn_id in await reader.take_more(min(free_slots, MAX_BATCH_TURNS) - 1):
            await self._accept_or_return(turn_id)

    async def _accept_or_return(self, turn_id: UUID) -> None:
        if self._slots.acquire(blocking=False):
            self._add_arrived(turn_id)
        else:
            await run_in_thread(worker_signals.push_wakeup, turn_id)

    def _add_arrived(self, turn_id: UUID) -> None:
        self._arrived.append(turn_id)
        if self._claiming is None:
            self._claiming = self._loop.create_task(self._claim_arrived())

    async def _claim_arrived(self) -> None:
        try:
            while self._arrived:
                arrived, self._arrived = self._arrived, []
                await self._claim_batch(arrived)
        finally:
            self._claiming = None

    async def _claim_batch(self, turn_ids: list[UUID]) -> None:
        batch = ClaimedBatch(runs=[], throttled=[])
        try:
            batch = await run_in_thread(claim_and_prepare_turns, turn_ids, self.identity.worker)
        except Error as problem:
            # Some may have been claimed all the same. No heartbeat lists them, so the sweep takes them over.
            log.warning("claim_failed", turns=len(turn_ids), error_kind=type(problem).__name__)
        except Exception:
            log.exception("claim_failed", turns=len(turn_ids))
        claimed = batch.runs
        for _ in range(len(turn_ids) - len(claimed)):
            self._slots.release()  # taken by another worker, ended, or throttled
        if batch.throttled:
            self._spawn(self._retry_throttled(batch.throttled))
        claims_flushed = self._loop.create_task(_flush_claims(), name="flush claims") if claimed else None
        for turn, prepared in claimed:
            try:
                self._start_run(turn, prepared, claims_flushed)
            except Exception:
                log.exception("turn_start_failed", turn_id=str(turn.turn_id))  # the sweep takes it over
                self._slots.release()

    async def _retry_throttled(self, throttled: list[UUID]) -> None:
        """Publish why these turns wait, then try them once more.

        A turn that ended at the same moment may not have seen them waiting. Turns that end later wake them.
        """
        await run_in_thread(publish_throttled_turns, throttled)
        await asyncio.sleep(THROTTLE_RETRY_SECONDS)
        for turn_id in throttled:
            await run_in_thread(wake_worker, turn_id)

    def _start_run(
        self,
        turn: turns.ClaimedTurn,
        prepared: PreparedTurn | None,
        claims_flushed: asyncio.Task[bool] | None,
    ) -> None:
        assert self._services is not None
        run = TurnRunner(turn, self._services, prepared, claims_flushed)
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
            log.error(
                "turn_interrupted_by_outage",
                turn_id=str(run.turn.turn_id),
                error_kind=type(problem).__name__,
            )
        except Exception:
            log.exception("turn_crashed", turn_id=str(run.turn.turn_id))
            await self._end_broken_run(run)
        finally:
            run.recorder.abandon()
            if run.is_closed and policies.are_holds_enabled():
                self._spawn(
                    run_in_thread(limit_checks.release_turn_hold, run.turn.user_id, str(run.turn.turn_id))
                )
            if self._runs.get(str(run.turn.turn_id)) is run:  # else this same process has taken it over
                del self._runs[str(run.turn.turn_id)]
            self._slots.release()

    async def _end_broken_run(self, run: TurnRunner) -> None:
        try:
            await run.end_after_error()
        except Exception:
            log.exception("crashed_turn_not_ended", turn_id=str(run.turn.turn_id))  # the sweep ends it

    # --- Watching running turns ------------------------------------------------------------------

    async def _renew_holds(self) -> None:
        if policies.are_holds_enabled():
            for run in tuple(self._runs.values()):
                await run_in_thread(limit_checks.renew_turn_hold, run.turn.user_id, str(run.turn.turn_id))

    async def _poll_stop_marks(self) -> None:
        runs = list(self._runs.values())
        for run, turn_id in zip(
            runs,
            await worker_signals.read_stop_marks([str(run.turn.session_id) for run in runs]),
            strict=True,
        ):
            if turn_id == str(run.turn.turn_id):
                run.interrupt("stop")

    async def _listen_for_stops(self) -> None:
        while True:
            try:
                async for message in worker_signals.listen_for_stops():
                    if run := self._runs.get(message.turn_id):
                        run.interrupt("stop")
            except Exception as problem:  # polling the stop marks covers the gap
                log.warning("stop_channel_lost", error_kind=type(problem).__name__)
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
        """Close connections whose API key neither the catalogue nor a running turn uses any more."""
        running = [
            entry
            for run in self._runs.values()
            if run.loop
            for entry in (*run.loop.chain, run.loop.client.entry)
        ]
        await clients.close_unused_clients((*catalogue.list_entries(), *running))

    # --- Shutdown --------------------------------------------------------------------------------

    def _interrupt_all(self, reason: Interruption) -> None:
        for run in tuple(self._runs.values()):
            run.interrupt(reason)

    async def _hand_over_all(self) -> None:
        self._interrupt_all("worker_shutdown")
        while runs := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(runs)
        assert self._services is not None
        await self._services.wait_for_background()
        await self._services.close()
        await close_all_clients()


async def _flush_claims() -> bool:
    """Flush the claims to disk while the model call is under way; return False when they may not survive a crash."""
    try:
        await run_in_thread(flush_wal)
    except DatabaseError:
        return False
    return True


_worker: TurnWorker | None = None
_start_lock = threading.Lock()


def start_worker(queues: list[str] | None = None) -> TurnWorker:
    global _worker  # noqa: PLW0603 - one per process, like the process itself
    with _start_lock:
        if _worker is None:
            worker = TurnWorker(queues or ["turns"])
            try:
                worker.start()
            except BaseException:
                worker.close_loop()
                raise
            _worker = worker
    return _worker


def start_worker_when_possible(
    queues: list[str], *, on_retry: Callable[[], object] = lambda: None
) -> TurnWorker:
    """Start the worker and listen. While Postgres or Redis is down, retry, and call `on_retry` before each attempt."""
    while True:
        try:
            worker = start_worker(queues)
            worker.start_listening()
        except (Error, psycopg.Error, *REDIS_OUTAGE_ERRORS) as problem:
            log.error("worker_start_delayed", error_kind=type(problem).__name__)
            connection.close()
            on_retry()
            time.sleep(START_RETRY_SECONDS)
        else:
            return worker


def accept_turn(turn_id: UUID) -> None:
    start_worker().accept_turn(turn_id)


def answer_side_question(session_id: UUID, side_id: str) -> None:
    start_worker().answer_side_question(session_id, side_id)


def drain_worker() -> None:
    if _worker is not None:
        _worker.drain(settings.TURN_GRACE_SECONDS)
