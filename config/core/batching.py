"""Batch concurrent work: group commits to Postgres, and calls shared by concurrent callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

from django.db import DataError, IntegrityError

from config.core.db import run_in_thread_with_retry

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Run the first write at once; writes that arrive meanwhile share the next statement."""

    def __init__(self, commit: Callable[[Sequence[T]], Sequence[R]]) -> None:
        self._commit = commit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._flight: asyncio.Task[None] | None = None

    async def write(self, item: T) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._flight is None:
            self._flight = asyncio.create_task(self._commit_waiting(), name="commit")
        return await future

    async def _commit_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._commit_batch(batch)
        finally:
            self._flight = None

    async def _commit_batch(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await run_in_thread_with_retry(self._commit, [item for item, _ in batch])
        except (DataError, IntegrityError) as problem:
            if len(batch) == 1:
                _fail_waiters(batch, problem)
                return
            for one in batch:  # one bad row must not fail the others
                await self._commit_batch([one])
        except Exception as problem:  # noqa: BLE001 - the caller must get it, or its turn hangs
            _fail_waiters(batch, problem)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail_waiters(batch: Sequence[tuple[T, asyncio.Future[R]]], problem: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(problem)


async def run_shielded(work: Coroutine[object, object, R]) -> R:
    """Finish what has begun before the cancellation takes effect, so that no row is left without its event."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # its error, if any, is raised again by the caller's own clean-up
        raise


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class _PendingItem(Generic[ItemT, ResultT]):
    """One waiting caller. An item that the shared call did not answer is retried alone."""

    __slots__ = ("asked", "granted", "item")

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.asked = threading.Event()
        self.granted: list[ResultT] = []


class BatchedCall(Generic[ItemT, ResultT]):
    """Share one call among all callers that arrive while another runs, on a thread that keeps its connection."""

    def __init__(
        self, act: Callable[[Sequence[ItemT]], Sequence[ResultT]], *, spoilt_by: type[Exception], name: str
    ) -> None:
        self._act = act  # takes items, returns as many results in the same order
        self._spoilt_by = spoilt_by
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._mutex = threading.Lock()
        self._pending: list[_PendingItem[ItemT, ResultT]] = []

    def __call__(self, item: ItemT) -> ResultT:
        """Raise only the error of this item's own call; a bad item does not fail the others."""
        mine: _PendingItem[ItemT, ResultT] = _PendingItem(item)
        with self._mutex:
            self._pending.append(mine)
            first = len(self._pending) == 1
        if first:
            self._thread.submit(self._run_batch)
        mine.asked.wait()
        return mine.granted[0] if mine.granted else self._act([item])[0]

    def _run_batch(self) -> None:
        with self._mutex:
            wishes, self._pending = self._pending, []
        try:
            with suppress(self._spoilt_by):
                results = self._act([wish.item for wish in wishes])
                for wish, result in zip(wishes, results, strict=True):
                    wish.granted.append(result)
        finally:
            for wish in wishes:
                wish.asked.set()
