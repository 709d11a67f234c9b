"""Poll updates of a bot account for `run_bot`, in one process at a time that holds the account's lease row.

Updates are stored before the next batch is requested. This module is the only writer of BotRunner.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection
from django.db.models.functions import Now

from linking.models import BotRunner
from linking.platforms.base import (
    IncomingUpdate,
    PlatformBusy,
    PlatformUnavailable,
    UpdateFetcher,
    UpdateMalformed,
)

log = structlog.get_logger(__name__)

LEASE_SECONDS = 30  # another process takes over this long after a runner died
LEASE_RENEW_SECONDS = 10
MAX_PAUSE_SECONDS = 60.0
STORE_TIMEOUT_SECONDS = 7.0  # a runner has ten seconds between SIGTERM and SIGKILL
StoreUpdate = Callable[[str, str, IncomingUpdate], None]

_CLAIM_LEASE_SQL = """
INSERT INTO linking_botrunner AS r (platform, bot_account, holder, until)
VALUES (%(platform)s, %(account)s, %(holder)s, now() + make_interval(secs => %(life)s))
ON CONFLICT (platform, bot_account) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE r.until < now() OR r.holder IN ('', excluded.holder)
RETURNING 1
"""


def generate_holder_id() -> str:
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


def claim_runner_lease(platform: str, bot_account: str, holder: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM_LEASE_SQL,
            {"platform": platform, "account": bot_account, "holder": holder, "life": LEASE_SECONDS},
        )
        return cursor.fetchone() is not None


def renew_runner_lease(platform: str, bot_account: str, holder: str) -> bool:
    """Return False if the lease is lost; the caller has to stop fetching at once."""
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    return bool(mine.filter(until__gt=Now()).update(until=Now() + timedelta(seconds=LEASE_SECONDS)))


def record_update_received(platform: str, bot_account: str, holder: str) -> None:
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(last_update_at=Now())


def release_runner_lease(platform: str, bot_account: str, holder: str) -> None:
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(holder="", until=Now())


class UpdatePoller:
    def __init__(self, fetcher: UpdateFetcher, platform: str, bot_account: str, store: StoreUpdate) -> None:
        self._fetcher = fetcher
        self._platform = platform
        self._account = bot_account
        self._store = store
        self._holder = generate_holder_id()
        self._stopping = asyncio.Event()
        self._storing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storing.set_result(None)

    def stop(self) -> None:
        """Stop fetching on SIGTERM; updates that were fetched are still stored."""
        self._stopping.set()

    async def run(self, *, replace_webhook: bool) -> None:
        """Fetch updates until `stop`, standing by while another process holds the lease.

        Raise PlatformMisconfigured if fetching cannot work.
        """
        try:
            while not self._stopping.is_set():
                if await self._claim_lease():
                    log.info("update_polling_started", platform=self._platform)
                    await self._fetcher.prepare(replace_webhook=replace_webhook)
                    await self._poll_while_leased()
                else:
                    await self._pause(LEASE_RENEW_SECONDS / 2)
        finally:
            await self._in_thread(release_runner_lease)
            await self._fetcher.aclose()

    async def _poll_while_leased(self) -> None:
        fetching = asyncio.create_task(self._fetch_batches())
        keeping = asyncio.create_task(self._keep_lease())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (fetching, keeping, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._wait_until_stored()
        if fetching.done() and not fetching.cancelled() and (problem := fetching.exception()) is not None:
            raise problem

    async def _wait_until_stored(self) -> None:
        await asyncio.wait((self._storing,), timeout=STORE_TIMEOUT_SECONDS)
        if not self._storing.done():
            # The batch was not acknowledged, so the platform sends it again.
            log.warning("update_store_abandoned", platform=self._platform)
            self._storing.cancel()
        await asyncio.gather(self._storing, return_exceptions=True)

    async def _fetch_batches(self) -> None:
        pause = 1.0
        while True:
            try:
                async for batch in self._fetcher.iter_batches():
                    pause = 1.0
                    self._storing = asyncio.ensure_future(self._store_batch(batch))
                    await asyncio.shield(self._storing)
            except (PlatformUnavailable, PlatformBusy) as problem:
                wait = problem.retry_after_seconds if isinstance(problem, PlatformBusy) else pause
                log.warning("update_polling_failed", platform=self._platform, error=str(problem))
                await asyncio.sleep(wait)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _store_batch(self, batch: Sequence[IncomingUpdate]) -> None:
        """Store the whole batch, waiting for the database if it is down."""
        if not batch:
            return
        for incoming in batch:
            while True:
                try:
                    await sync_to_async(self._store)(self._platform, self._account, incoming)
                    break
                except UpdateMalformed:
                    log.warning("update_malformed", platform=self._platform)
                    break
                except DatabaseError:
                    log.warning("update_store_failed", platform=self._platform)
                    await asyncio.sleep(1.0)
        await self._in_thread(record_update_received)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEW_SECONDS)
            if not await self._in_thread(renew_runner_lease):
                log.warning("runner_lease_lost", platform=self._platform)
                return

    async def _claim_lease(self) -> bool:
        return await self._in_thread(claim_runner_lease)

    async def _in_thread(self, function: Callable[[str, str, str], bool | None]) -> bool:
        try:
            return bool(await sync_to_async(function)(self._platform, self._account, self._holder))
        except DatabaseError:
            log.warning("runner_lease_unavailable", platform=self._platform)
            return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
