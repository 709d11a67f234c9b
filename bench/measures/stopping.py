"""Measure how soon a stopped turn ends while its provider is silent (P8)."""

from __future__ import annotations

import asyncio

from bench.bars import Findings, Measured
from bench.clients import Prompt
from bench.options import Scale
from bench.readings import milliseconds, now, percentile, spread
from bench.site import BenchProblem, Site

SILENT = Prompt(tokens=50, more={"silent_after": 3})


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    clients = await site.clients(range(8))
    waited = []
    for number in range(scale.stops):
        client = clients[number % len(clients)]
        reading = client.begin(SILENT)
        await asyncio.wait_for(client.following.first.wait(), 10)
        await asyncio.sleep(0.05)  # the provider is silent by now
        asked = now()
        client.post("turn.stop", session_id=client.session_id)
        await client.following.finished()
        if reading.ending != "turn.cancelled":
            raise BenchProblem(f"a stopped turn ended as {reading.ending} {reading.problem}")
        waited.append(milliseconds(reading.ended_at - asked))
    for client in clients:
        await client.close()
    findings.lines["P8"] = Measured((percentile(waited, 95),), {"stopped_ms": spread(waited)})
