"""Group commit: what many turns of a process write at the same time goes to Postgres in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, TypeVar

from django.db import DataError, IntegrityError

from copilot.bridge import retried

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """The first write goes at once; those that come while it is under way wait for each other, not for it."""

    def __init__(self, commit: Callable[[Sequence[T]], Sequence[R]]) -> None:
        self._commit = commit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._flight: asyncio.Task[None] | None = None

    async def write(self, item: T) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="commit")
        return await future

    async def _fly(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._land(batch)
        finally:
            self._flight = None

    async def _land(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await retried(self._commit, [item for item, _ in batch])
        except (DataError, IntegrityError) as problem:
            if len(batch) == 1:
                _fail(batch, problem)
                return
            for one in batch:  # one bad row must not spoil its neighbours
                await self._land([one])
        except Exception as problem:  # noqa: BLE001 - whoever waits must hear of it: silence hangs a turn
            _fail(batch, problem)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(batch: Sequence[tuple[T, asyncio.Future[R]]], problem: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(problem)


async def uncut(work: Coroutine[object, object, R]) -> R:
    """Finish what has begun, and only then be cancelled: a row is never left without its event."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # what it met, the cancellation's own last acts meet again
        raise
