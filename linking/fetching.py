"""The loop of `run_bot`: hold the row, fetch, store, and only then ask for more (L24)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from asgiref.sync import sync_to_async
from django.db import DatabaseError

from linking import runners
from linking.platforms.base import Away, Busy, Fetcher, Incoming, Unreadable

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
STORING_SECONDS = 7.0  # of the ten within which a runner is gone after SIGTERM
Store = Callable[[str, str, Incoming], None]


class Runner:
    """One process's try to be the runner of a bot account."""

    def __init__(self, fetcher: Fetcher, platform: str, bot_account: str, store: Store) -> None:
        self._fetcher = fetcher
        self._platform = platform
        self._account = bot_account
        self._store = store
        self._holder = runners.new_holder()
        self._stopping = asyncio.Event()
        self._storing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storing.set_result(None)

    def stop(self) -> None:
        """SIGTERM: stop fetching; what was fetched is stored."""
        self._stopping.set()

    async def run(self, *, replace_webhook: bool) -> None:
        """Until told to stop; stands by while another process is active. Raises `Misconfigured`."""
        try:
            while not self._stopping.is_set():
                if await self._claim():
                    log.info("fetching updates of %s", self._platform)
                    await self._fetcher.prepare(replace_webhook=replace_webhook)
                    await self._active()
                else:
                    await self._pause(runners.RENEW_SECONDS / 2)
        finally:
            await self._in_thread(runners.leave)
            await self._fetcher.aclose()

    async def _active(self) -> None:
        """Fetch for as long as the row is ours."""
        fetching = asyncio.create_task(self._fetch())
        keeping = asyncio.create_task(self._keep())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (fetching, keeping, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stored()
        if fetching.done() and not fetching.cancelled() and (problem := fetching.exception()) is not None:
            raise problem

    async def _stored(self) -> None:
        """What was fetched is stored; a database that is away is not waited for beyond what SIGTERM leaves."""
        await asyncio.wait((self._storing,), timeout=STORING_SECONDS)
        if not self._storing.done():
            log.warning("the inbox is unreachable; %s is asked for its last updates again", self._platform)
            self._storing.cancel()
        await asyncio.gather(self._storing, return_exceptions=True)

    async def _fetch(self) -> None:
        pause = 1.0
        while True:
            try:
                async for batch in self._fetcher.batches():
                    pause = 1.0
                    self._storing = asyncio.ensure_future(self._take(batch))
                    await asyncio.shield(self._storing)
            except (Away, Busy) as problem:
                wait = problem.retry_after_seconds if isinstance(problem, Busy) else pause
                log.warning("%s: %s; trying again", self._platform, problem)
                await asyncio.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _take(self, batch: Sequence[Incoming]) -> None:
        """All of it is stored before anything is told to be; a database that is away is waited for."""
        if not batch:
            return
        for incoming in batch:
            while True:
                try:
                    await sync_to_async(self._store)(self._platform, self._account, incoming)
                    break
                except Unreadable:
                    log.warning("an update of %s cannot be one; it is left out", self._platform)
                    break
                except DatabaseError:
                    log.warning("the inbox is unreachable; an update of %s waits", self._platform)
                    await asyncio.sleep(1.0)
        await self._in_thread(runners.heard)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(runners.RENEW_SECONDS)
            if not await self._in_thread(runners.renew):
                log.warning("another process fetches updates of %s now", self._platform)
                return

    async def _claim(self) -> bool:
        return await self._in_thread(runners.claim)

    async def _in_thread(self, act: Callable[[str, str, str], bool | None]) -> bool:
        try:
            return bool(await sync_to_async(act)(self._platform, self._account, self._holder))
        except DatabaseError:
            log.warning("the row of the runner of %s is unreachable", self._platform)
            return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
