"""Measure the standard load with one, two and four turn workers beside one web process."""

from __future__ import annotations

import asyncio

from bench.bars import Findings, Measured
from bench.measures.standard import run_load
from bench.options import Scale
from bench.site import Site

WORKER_COUNTS = (1, 2, 4)
CONCURRENCY = 50
START_TIMEOUT_SECONDS = 60.0


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    speeds, detail = [], {}
    started = 1
    for count in WORKER_COUNTS:
        while started < count:
            site.add_worker()
            started += 1
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while site.living_workers() < count:  # noqa: ASYNC110 - other processes set no event here
                await asyncio.sleep(0.5)
        loaded = await run_load(await site.clients(range(CONCURRENCY)), scale.rounds)
        speeds.append(loaded.turns_per_second)
        detail[f"workers={count}"] = loaded.as_detail()
    findings.lines["SCALING"] = Measured(tuple(speeds), dict(detail))
