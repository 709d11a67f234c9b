"""Measure page loads: the first paint of a chat, and a shared page with its pictures (W4, S21)."""

from __future__ import annotations

import asyncio
import shutil
import time

import aiohttp
from playwright.async_api import Browser, async_playwright

from bench.bars import Findings, Measured
from bench.clients import http_session
from bench.meters import sql_log
from bench.options import Scale
from bench.readings import percentile, spread
from bench.site import BenchProblem, Site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAINTED = """() => new Promise((told) => new PerformanceObserver((seen) => {
  for (const paint of seen.getEntriesByName("first-contentful-paint")) told(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
AT_ONCE = 6  # connections of one browser to one host


async def measure_paint(site: Site, scale: Scale, findings: Findings) -> None:
    """Load with an empty cache; the first two loads warm up the server and the browser."""
    if CHROMIUM is None:
        raise BenchProblem("there is no Chromium here")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        times = [await _painted(browser, site) for _ in range(scale.paints + 2)][2:]
        await browser.close()
    findings.lines["W4"] = Measured((percentile(times, 50),), {"first_contentful_paint_ms": spread(times)})


async def _painted(browser: Browser, site: Site) -> float:
    target = site.target(0)
    name, _, value = target.headers["Cookie"].partition("=")
    context = await browser.new_context()
    await context.add_cookies([{"name": name, "value": value, "url": target.url}])
    page = await context.new_page()
    await page.goto(f"{target.url}/chat/")
    painted = float(await page.evaluate(PAINTED))
    await context.close()
    return painted


async def measure_share(site: Site, scale: Scale, findings: Findings) -> None:
    times: list[float] = []
    pause = scale.visit_seconds / scale.visitors
    visits = []
    for number in range(scale.visitors):
        visits.append(asyncio.create_task(_visit(site, number, times)))
        await asyncio.sleep(pause)
    await asyncio.gather(*visits)
    found = {"request_ms": spread(times), "visitors_per_second": round(1 / pause, 1)}
    findings.lines["S21"] = Measured((percentile(times, 95), float(await _statements(site))), found)


async def _visit(site: Site, number: int, times: list[float]) -> None:
    """Open a separate browser with its own address, because requests per address are limited."""
    page, *pictures = site.seeded.share
    connector = aiohttp.TCPConnector(
        limit=AT_ONCE, local_addr=(f"127.1.{number // 250}.{number % 250 + 1}", 0)
    )
    async with aiohttp.ClientSession(connector=connector) as http:
        times.append(await _fetched(http, site.url + page))
        times += await asyncio.gather(*(_fetched(http, site.url + picture) for picture in pictures))


async def _fetched(http: aiohttp.ClientSession, url: str) -> float:
    began = time.perf_counter()
    async with http.get(url) as response:
        await response.read()
        if response.status != 200:
            raise BenchProblem(f"a shared page or file answered {response.status}")
    return 1000 * (time.perf_counter() - began)


async def _statements(site: Site) -> int:
    async with http_session() as http:
        with sql_log(site) as log:
            log.begin()
            await _fetched(http, site.url + site.seeded.share[1])
            await asyncio.sleep(0.05)
            return len(log.statements("web"))
