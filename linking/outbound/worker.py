"""A process's own event loop for the platforms: turns are carried and messages sent there, many at once (L19).

Who carries a turn holds an advisory lock of Postgres on a connection of this process: the server frees it the moment
the process dies, and the sweep of any other goes on where it stood.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import psycopg
from django.db import connection

from config.core import db
from config.core.postgres import build_connection_string
from linking.outbound import records
from linking.outbound.turn_follower import follow_turn
from linking.platforms import registry
from linking.platforms.base import PlatformAdapter, PlatformError

log = logging.getLogger(__name__)

LOCK_NAMESPACE = 0x50484C4B  # apart from the workers' and everybody else's
CANCEL_WAIT_SECONDS = 0.2
T = TypeVar("T")


class _TurnLocks:
    """Session-level locks on one connection. A connection that breaks has lost them all."""

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
    """Clients of the platforms live as long as the loop, so that connections and rate buckets are kept."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._adapters: dict[str, PlatformAdapter] = {}
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._restart: set[UUID] = set()
        self._pending: set[Future[None]] = set()
        self._chat_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._locks = _TurnLocks()
        self._leaving = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="courier", daemon=True)
        self._thread.start()

    def deliver_turn(self, turn_id: UUID) -> None:
        """Carry this turn, if nobody does; from any thread, at once."""
        self._loop.call_soon_threadsafe(self._start_turn, turn_id)

    def call(self, platform: str, act: Callable[[PlatformAdapter], Awaitable[T]], *, seconds: float) -> T:
        """Have something done on the loop and wait for it; from any other thread."""

        async def done() -> T:
            async with asyncio.timeout(seconds):
                return await act(self.get_adapter(platform))

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    def spawn(self, act: Callable[[], Awaitable[None]]) -> None:
        """The same, and nobody waits; a platform's refusal is not worth a word."""

        async def done() -> None:
            with suppress(PlatformError, LookupError):
                await act()

        said = asyncio.run_coroutine_threadsafe(done(), self._loop)
        self._pending.add(said)
        said.add_done_callback(self._on_sent)

    def _on_sent(self, said: Future[None]) -> None:
        self._pending.discard(said)
        if not said.cancelled() and said.exception() is not None:
            log.error("a message could not be said", exc_info=said.exception())

    def wait_until_sent(self, seconds: float) -> None:
        """Wait for what nobody else waits for, as long as this."""
        wait(self._pending.copy(), seconds)

    def get_chat_lock(self, chat: str) -> asyncio.Lock:
        """Held by who speaks there, on the loop; the others wait in the order in which they came."""
        return self._chat_locks.setdefault(chat, asyncio.Lock())

    def get_adapter(self, platform: str) -> PlatformAdapter:
        if platform not in self._adapters:
            made = registry.build_adapter(platform)
            if made is None:
                raise LookupError(f"{platform} is off")
            self._adapters[platform] = made
        return self._adapters[platform]

    # --- on the loop ---

    def _start_turn(self, turn_id: UUID) -> None:
        if self._leaving:
            return
        if turn_id in self._running:
            self._restart.add(turn_id)  # it may be on its way out: look once more then
            return
        task = self._loop.create_task(self._deliver_turn(turn_id))
        self._running[turn_id] = task
        task.add_done_callback(partial(self._on_turn_done, turn_id))

    def _on_turn_done(self, turn_id: UUID, task: asyncio.Task[None]) -> None:
        self._running.pop(turn_id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("turn %s could not be carried to its chat", turn_id, exc_info=task.exception())
        elif turn_id in self._restart:
            self._restart.discard(turn_id)
            self._start_turn(turn_id)

    async def _deliver_turn(self, turn_id: UUID) -> None:
        if not await db.run_in_thread(self._claim_turn, turn_id):
            return
        try:
            errand = await db.run_in_thread(records.load_outbound_turn, turn_id, get_own_accounts())
            if errand is not None:
                await follow_turn(errand, self.get_adapter(errand.platform))
        finally:
            await db.run_in_thread(self._locks.release, turn_id)

    def _claim_turn(self, turn_id: UUID) -> bool:
        return records.is_delivery_pending(turn_id, get_own_accounts()) and self._locks.acquire(turn_id)

    def close(self) -> None:
        """After a test: what is on its way is dropped, as by a death, and the clients close."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._locks.close()
        self._loop.close()

    async def _cancel_all(self) -> None:
        self._leaving = True
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:  # one that meets an outage on its way out may take it for a reason to go on
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_WAIT_SECONDS)
        for adapter in self._adapters.values():
            await adapter.aclose()


def get_own_accounts() -> dict[str, str]:
    """Our bot account on each platform that is on."""
    return {adapter.platform: adapter.bot_account for adapter in registry.iter_enabled_adapters()}


def find_undelivered_turns() -> list[UUID]:
    """Answers that are not yet given and that no process carries: in all processes, as the locks tell."""
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
    """The one of this process, made when it is first needed."""
    with _ProcessState.mutex:
        if _ProcessState.worker is None:
            _ProcessState.worker = OutboundWorker()
        return _ProcessState.worker


def wait_until_sent(seconds: float) -> None:
    """Before this process leaves: what it has begun to say is said, if the platforms take it within this time."""
    if (found := _ProcessState.worker) is not None:
        found.wait_until_sent(seconds)


def reset_worker() -> None:
    """After a test."""
    with _ProcessState.mutex:
        if _ProcessState.worker is not None:
            _ProcessState.worker.close()
            _ProcessState.worker = None
