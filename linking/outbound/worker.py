"""Run a process's event loop for the chat platforms, on which turns are delivered and messages sent.

The process that delivers a turn holds a Postgres advisory lock. Postgres releases it as soon as the process dies, and
the sweep of another process continues the delivery.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import psycopg
import structlog
from django.db import connection

from config.core import db
from config.core.db import build_connection_string
from linking.outbound import records
from linking.outbound.turn_follower import follow_turn
from linking.platforms import registry
from linking.platforms.base import PlatformAdapter, PlatformError

log = structlog.get_logger(__name__)

LOCK_NAMESPACE = 0x50484C4B  # keeps these advisory locks apart from others
CANCEL_WAIT_SECONDS = 0.2
T = TypeVar("T")


class _TurnLocks:
    """Session-level advisory locks on one connection; all are lost if the connection breaks."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection[tuple[bool]] | None = None
        self._mutex = threading.Lock()

    def acquire(self, turn_id: UUID) -> bool:
        with self._mutex:
            return self._execute("SELECT pg_try_advisory_lock(%s, %s)", turn_id)

    def release(self, turn_id: UUID) -> None:
        with self._mutex:
            try:
                self._execute("SELECT pg_advisory_unlock(%s, %s)", turn_id)
            except psycopg.Error:
                self.close()

    def _execute(self, statement: str, turn_id: UUID) -> bool:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(build_connection_string(), autocommit=True)
        found = self._connection.execute(statement, [LOCK_NAMESPACE, _lock_key(turn_id)]).fetchone()
        return found is not None and found[0]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class OutboundWorker:
    """Own the event loop and the platform clients, which live as long as the loop to keep their rate limits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._adapters: dict[str, PlatformAdapter] = {}
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._restart: set[UUID] = set()
        self._pending: set[Future[None]] = set()
        self._chat_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._locks = _TurnLocks()
        self._leaving = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="outbound-worker", daemon=True)
        self._thread.start()

    def deliver_turn(self, turn_id: UUID) -> None:
        """Start delivering this turn unless a process already does. Returns at once; callable from any thread."""
        self._loop.call_soon_threadsafe(self._start_turn, turn_id)

    def call(
        self, platform: str, function: Callable[[PlatformAdapter], Awaitable[T]], *, seconds: float
    ) -> T:
        """Run a function on the loop and wait for its result; callable from any other thread."""

        async def run() -> T:
            async with asyncio.timeout(seconds):
                return await function(self.get_adapter(platform))

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function on the loop without waiting. Platform errors are ignored."""

        async def run() -> None:
            with suppress(PlatformError, LookupError):
                await function()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        self._pending.add(future)
        future.add_done_callback(self._on_sent)

    def _on_sent(self, future: Future[None]) -> None:
        self._pending.discard(future)
        if not future.cancelled() and future.exception() is not None:
            log.error("notice_failed", exc_info=future.exception())

    def wait_until_sent(self, seconds: float) -> None:
        """Wait at most this long for calls made by `spawn`."""
        wait(self._pending.copy(), seconds)

    def get_chat_lock(self, chat: str) -> asyncio.Lock:
        """Return the lock that keeps notices to one chat in order."""
        return self._chat_locks.setdefault(chat, asyncio.Lock())

    def get_adapter(self, platform: str) -> PlatformAdapter:
        if platform not in self._adapters:
            adapter = registry.build_adapter(platform)
            if adapter is None:
                raise LookupError(f"{platform} is not enabled")
            self._adapters[platform] = adapter
        return self._adapters[platform]

    # --- On the loop ---

    def _start_turn(self, turn_id: UUID) -> None:
        if self._leaving:
            return
        if turn_id in self._running:
            self._restart.add(turn_id)  # the task may be about to end, so look again when it has
            return
        task = self._loop.create_task(self._deliver_turn(turn_id))
        self._running[turn_id] = task
        task.add_done_callback(partial(self._on_turn_done, turn_id))

    def _on_turn_done(self, turn_id: UUID, task: asyncio.Task[None]) -> None:
        self._running.pop(turn_id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("turn_delivery_failed", turn_id=turn_id, exc_info=task.exception())
        elif turn_id in self._restart:
            self._restart.discard(turn_id)
            self._start_turn(turn_id)

    async def _deliver_turn(self, turn_id: UUID) -> None:
        if not await db.run_in_thread(self._claim_turn, turn_id):
            return
        try:
            outbound_turn = await db.run_in_thread(records.load_outbound_turn, turn_id, get_own_accounts())
            if outbound_turn is not None:
                await follow_turn(outbound_turn, self.get_adapter(outbound_turn.platform))
        finally:
            await db.run_in_thread(self._locks.release, turn_id)

    def _claim_turn(self, turn_id: UUID) -> bool:
        return records.is_delivery_pending(turn_id, get_own_accounts()) and self._locks.acquire(turn_id)

    def close(self) -> None:
        """Cancel everything, as if the process had died, and close the clients. Used by tests."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._locks.close()
        self._loop.close()

    async def _cancel_all(self) -> None:
        self._leaving = True
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            # Cancelled repeatedly: a task that hits an outage while it is being cancelled may retry instead.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_WAIT_SECONDS)
        for adapter in self._adapters.values():
            await adapter.aclose()


def get_own_accounts() -> dict[str, str]:
    """Return our bot account on each enabled platform."""
    return {adapter.platform: adapter.bot_account for adapter in registry.iter_enabled_adapters()}


def find_undelivered_turns() -> list[UUID]:
    """Return turns whose answer is not delivered and that no process is delivering, judged by the locks."""
    held = set(_list_held_locks())
    return [
        turn_id
        for turn_id in records.find_pending_turns(get_own_accounts())
        if _lock_key(turn_id) not in held
    ]


def _list_held_locks() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2",
            [LOCK_NAMESPACE],
        )
        return [number - 2**32 if number >= 2**31 else number for (number,) in cursor.fetchall()]


def _lock_key(turn_id: UUID) -> int:
    return int.from_bytes(turn_id.bytes[:4], "big", signed=True)


class _ProcessState:
    worker: OutboundWorker | None = None
    mutex = threading.Lock()


def get_worker() -> OutboundWorker:
    """Return this process's worker, started on first use."""
    with _ProcessState.mutex:
        if _ProcessState.worker is None:
            _ProcessState.worker = OutboundWorker()
        return _ProcessState.worker


def wait_until_sent(seconds: float) -> None:
    """Give pending notices this much time before the process exits."""
    if (worker := _ProcessState.worker) is not None:
        worker.wait_until_sent(seconds)


def reset_worker() -> None:
    """Close the worker after a test."""
    with _ProcessState.mutex:
        if _ProcessState.worker is not None:
            _ProcessState.worker.close()
            _ProcessState.worker = None
