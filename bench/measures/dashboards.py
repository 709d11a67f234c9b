"""Measure the cost of monitoring: first tokens while staff watch the dashboard, and scrapes of /metrics (D13, D16)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp

from bench.bars import Findings, Measured
from bench.clients import Target, http_session
from bench.measures.first_token import first_token_ms
from bench.options import Scale
from bench.readings import percentile, spread
from bench.site import BenchProblem, Site

BROWSERS = 5
RENEWED_SECONDS = 5.0  # six times as often as a page refreshes
ROUNDS = 4
SCRAPES, PAUSES = 40, 4
PAUSE_SECONDS = 6.0  # the summary is cached for five


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    """Alternate quiet and watched calls, so that a slow moment of the machine affects both."""
    site.query(
        "UPDATE auth_user SET is_staff = true, is_superuser = true WHERE username = ANY(%s)",
        [f"bench{number}" for number in range(BROWSERS)],
    )
    quiet, watched, calls = list[float](), list[float](), max(4, scale.first_tokens // ROUNDS)
    for _ in range(ROUNDS):
        quiet += await first_token_ms(site, calls, session=BROWSERS)
        async with _open(site):
            watched += await first_token_ms(site, calls, session=BROWSERS)
    later = percentile(watched, 50) - percentile(quiet, 50)
    findings.lines["D13"] = Measured((later,), {"quiet_ms": spread(quiet), "watched_ms": spread(watched)})
    findings.lines["D16"] = await _scraped(site)


@contextlib.asynccontextmanager
async def _open(site: Site) -> AsyncIterator[None]:
    """Keep dashboards open, each of another administrator, because refreshes are limited per person."""
    async with http_session() as http, asyncio.TaskGroup() as browsers:
        tasks = [browsers.create_task(_renewed(http, site.target(number))) for number in range(BROWSERS)]
        await asyncio.sleep(1)
        yield
        for task in tasks:
            task.cancel()


async def _renewed(http: aiohttp.ClientSession, target: Target) -> None:
    while True:
        await _fetched(http, f"{target.url}/admin/diagnostics/", {**target.headers, "X-Fragment": "1"})
        await asyncio.sleep(RENEWED_SECONDS)


async def _scraped(site: Site) -> Measured:
    async with http_session() as http:
        address = f"{site.url}/metrics"
        await _fetched(http, address)
        warm = [await _fetched(http, address) for _ in range(SCRAPES)]
        later = []
        for _ in range(PAUSES):
            await asyncio.sleep(PAUSE_SECONDS)
            later.append(await _fetched(http, address))
    found: dict[str, object] = {"warm_ms": spread(warm), "after_a_pause_ms": spread(later)}
    return Measured((percentile(warm, 95), percentile(later, 50)), found)


async def _fetched(http: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    async with http.get(url, headers=headers) as response:
        await response.read()
        if response.status != 200:
            raise BenchProblem(f"{url} answered {response.status}")
    return 1000 * (time.perf_counter() - began)
