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

from config.core.database import connection_string
from copilot.queries import readers
from linking import platforms
from linking.outbound import records
from linking.outbound.carrying import carry
from linking.platforms.base import Adapter, PlatformProblem

log = logging.getLogger(__name__)

LOCK_SPACE = 0x50484C4B  # apart from the workers' and everybody else's
UNWIND_SECONDS = 0.2
T = TypeVar("T")


class _Locks:
    """Session-level locks on one connection. A connection that breaks has lost them all."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection[tuple[bool]] | None = None
        self._mutex = threading.Lock()

    def take(self, turn_id: UUID) -> bool:
        with self._mutex:
            return self._ask("SELECT pg_try_advisory_lock(%s, %s)", turn_id)

    def give_back(self, turn_id: UUID) -> None:
        with self._mutex:
            try:
                self._ask("SELECT pg_advisory_unlock(%s, %s)", turn_id)
            except psycopg.Error:
                self.close()

    def _ask(self, statement: str, turn_id: UUID) -> bool:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(connection_string(), autocommit=True)
        found = self._connection.execute(statement, [LOCK_SPACE, _lock_key(turn_id)]).fetchone()
        return found is not None and found[0]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Courier:
    """Clients of the platforms live as long as the loop, so that connections and rate buckets are kept."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._adapters: dict[str, Adapter] = {}
        self._carried: dict[UUID, asyncio.Task[None]] = {}
        self._again: set[UUID] = set()
        self._unsaid: set[Future[None]] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._locks = _Locks()
        self._leaving = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="courier", daemon=True)
        self._thread.start()

    def take(self, turn_id: UUID) -> None:
        """Carry this turn, if nobody does; from any thread, at once."""
        self._loop.call_soon_threadsafe(self._begin, turn_id)

    def call(self, platform: str, act: Callable[[Adapter], Awaitable[T]], *, seconds: float) -> T:
        """Have something done on the loop and wait for it; from any other thread."""

        async def done() -> T:
            async with asyncio.timeout(seconds):
                return await act(self.adapter(platform))

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    def spawn(self, act: Callable[[], Awaitable[None]]) -> None:
        """The same, and nobody waits; a platform's refusal is not worth a word."""

        async def done() -> None:
            with suppress(PlatformProblem, LookupError):
                await act()

        said = asyncio.run_coroutine_threadsafe(done(), self._loop)
        self._unsaid.add(said)
        said.add_done_callback(self._said)

    def _said(self, said: Future[None]) -> None:
        self._unsaid.discard(said)
        if not said.cancelled() and said.exception() is not None:
            log.error("a message could not be said", exc_info=said.exception())

    def settle(self, seconds: float) -> None:
        """Wait for what nobody else waits for, as long as this."""
        wait(self._unsaid.copy(), seconds)

    def turn_of(self, chat: str) -> asyncio.Lock:
        """Held by who speaks there, on the loop; the others wait in the order in which they came."""
        return self._turns.setdefault(chat, asyncio.Lock())

    def adapter(self, platform: str) -> Adapter:
        if platform not in self._adapters:
            made = platforms.build(platform)
            if made is None:
                raise LookupError(f"{platform} is off")
            self._adapters[platform] = made
        return self._adapters[platform]

    # --- on the loop ---

    def _begin(self, turn_id: UUID) -> None:
        if self._leaving:
            return
        if turn_id in self._carried:
            self._again.add(turn_id)  # it may be on its way out: look once more then
            return
        task = self._loop.create_task(self._carry(turn_id))
        self._carried[turn_id] = task
        task.add_done_callback(partial(self._ended, turn_id))

    def _ended(self, turn_id: UUID, task: asyncio.Task[None]) -> None:
        self._carried.pop(turn_id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("turn %s could not be carried to its chat", turn_id, exc_info=task.exception())
        elif turn_id in self._again:
            self._again.discard(turn_id)
            self._begin(turn_id)

    async def _carry(self, turn_id: UUID) -> None:
        if not await readers.in_thread(self._claimed, turn_id):
            return
        try:
            errand = await readers.in_thread(records.errand_of, turn_id, accounts())
            if errand is not None:
                await carry(errand, self.adapter(errand.platform))
        finally:
            await readers.in_thread(self._locks.give_back, turn_id)

    def _claimed(self, turn_id: UUID) -> bool:
        return records.is_owed(turn_id, accounts()) and self._locks.take(turn_id)

    def close(self) -> None:
        """After a test: what is on its way is dropped, as by a death, and the clients close."""
        asyncio.run_coroutine_threadsafe(self._unwind(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._locks.close()
        self._loop.close()

    async def _unwind(self) -> None:
        self._leaving = True
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:  # one that meets an outage on its way out may take it for a reason to go on
                task.cancel()
            await asyncio.wait(left, timeout=UNWIND_SECONDS)
        for adapter in self._adapters.values():
            await adapter.aclose()


def accounts() -> dict[str, str]:
    """Our bot account on each platform that is on."""
    return {adapter.platform: adapter.bot_account for adapter in platforms.switched_on()}


def owed() -> list[UUID]:
    """Answers that are not yet given and that no process carries: in all processes, as the locks tell."""
    held = set(_held())
    return [turn_id for turn_id in records.owed(accounts()) if _lock_key(turn_id) not in held]


def _held() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2",
            [LOCK_SPACE],
        )
        return [number - 2**32 if number >= 2**31 else number for (number,) in cursor.fetchall()]


def _lock_key(turn_id: UUID) -> int:
    return int.from_bytes(turn_id.bytes[:4], "big", signed=True)


class _Process:
    courier: Courier | None = None
    mutex = threading.Lock()


def courier() -> Courier:
    """The one of this process, made when it is first needed."""
    with _Process.mutex:
        if _Process.courier is None:
            _Process.courier = Courier()
        return _Process.courier


def settle(seconds: float) -> None:
    """Before this process leaves: what it has begun to say is said, if the platforms take it within this time."""
    if (found := _Process.courier) is not None:
        found.settle(seconds)


def forget() -> None:
    """After a test."""
    with _Process.mutex:
        if _Process.courier is not None:
            _Process.courier.close()
            _Process.courier = None
