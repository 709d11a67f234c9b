"""Which process fetches a bot account's updates: one at a time, by a row that must be renewed (L24). Writes BotRunner."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

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

LEASE_SECONDS = 30  # a runner that died is followed by another after this
LEASE_RENEW_SECONDS = 10

_CLAIM_LEASE_SQL = """
INSERT INTO linking_botrunner AS r (platform, bot_account, holder, until)
VALUES (%(platform)s, %(account)s, %(holder)s, now() + make_interval(secs => %(life)s))
ON CONFLICT (platform, bot_account) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE r.until < now() OR r.holder IN ('', excluded.holder)
RETURNING 1
"""


def generate_holder_id() -> str:
    """A name that no other process has ever had."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


def claim_runner_lease(platform: str, bot_account: str, holder: str) -> bool:
    """Whether the account is this holder's now; by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM_LEASE_SQL,
            {"platform": platform, "account": bot_account, "holder": holder, "life": LEASE_SECONDS},
        )
        return cursor.fetchone() is not None


def renew_runner_lease(platform: str, bot_account: str, holder: str) -> bool:
    """False when somebody else has it: stop fetching at once."""
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    return bool(mine.filter(until__gt=Now()).update(until=Now() + timedelta(seconds=LEASE_SECONDS)))


def record_update_received(platform: str, bot_account: str, holder: str) -> None:
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(last_update_at=Now())


def release_runner_lease(platform: str, bot_account: str, holder: str) -> None:
    """In order: the next one need not wait."""
    mine = BotRunner.objects.filter(platform=platform, bot_account=bot_account, holder=holder)
    mine.update(holder="", until=Now())


# MERGED fetching: The loop of `run_bot`: hold the row, fetch, store, and only then ask for more (L24).

log = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 60.0
STORE_TIMEOUT_SECONDS = 7.0  # of the ten within which a runner is gone after SIGTERM
StoreUpdate = Callable[[str, str, IncomingUpdate], None]


class UpdatePoller:
    """One process's try to be the runner of a bot account."""

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
        """SIGTERM: stop fetching; what was fetched is stored."""
        self._stopping.set()

    async def run(self, *, replace_webhook: bool) -> None:
        """Until told to stop; stands by while another process is active. Raises `Misconfigured`."""
        try:
            while not self._stopping.is_set():
                if await self._claim_lease():
                    log.info("fetching updates of %s", self._platform)
                    await self._fetcher.prepare(replace_webhook=replace_webhook)
                    await self._poll_while_leased()
                else:
                    await self._pause(LEASE_RENEW_SECONDS / 2)
        finally:
            await self._in_thread(release_runner_lease)
            await self._fetcher.aclose()

    async def _poll_while_leased(self) -> None:
        """Fetch for as long as the row is ours."""
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
        """What was fetched is stored; a database that is away is not waited for beyond what SIGTERM leaves."""
        await asyncio.wait((self._storing,), timeout=STORE_TIMEOUT_SECONDS)
        if not self._storing.done():
            log.warning("the inbox is unreachable; %s is asked for its last updates again", self._platform)
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
                log.warning("%s: %s; trying again", self._platform, problem)
                await asyncio.sleep(wait)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _store_batch(self, batch: Sequence[IncomingUpdate]) -> None:
        """All of it is stored before anything is told to be; a database that is away is waited for."""
        if not batch:
            return
        for incoming in batch:
            while True:
                try:
                    await sync_to_async(self._store)(self._platform, self._account, incoming)
                    break
                except UpdateMalformed:
                    log.warning("an update of %s cannot be one; it is left out", self._platform)
                    break
                except DatabaseError:
                    log.warning("the inbox is unreachable; an update of %s waits", self._platform)
                    await asyncio.sleep(1.0)
        await self._in_thread(record_update_received)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEW_SECONDS)
            if not await self._in_thread(renew_runner_lease):
                log.warning("another process fetches updates of %s now", self._platform)
                return

    async def _claim_lease(self) -> bool:
        return await self._in_thread(claim_runner_lease)

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
