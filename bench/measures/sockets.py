"""Measure the cost of idle sockets, and the events a web process delivers per second of CPU (P4, P5)."""

from __future__ import annotations

import asyncio

from bench.bars import Findings, Growth, Measured
from bench.clients import Prompt, SocketClient
from bench.measures.first_token import first_token_ms, played
from bench.meters import cpu_seconds, memory_bytes
from bench.options import Scale
from bench.readings import percentile, spread
from bench.site import Site

LAST = 8  # sessions below this number are for turns
WATCHED = Prompt(tokens=1000, gap_ms=5)


async def measure_idle(site: Site, scale: Scale, findings: Findings) -> None:
    alone = await first_token_ms(site, scale.first_tokens // 2)
    warm = await site.clients(range(LAST, LAST + 20))
    await _closed(warm)
    await asyncio.sleep(0.5)
    empty = memory_bytes(site, "web")
    sockets: list[SocketClient] = []
    used: list[int] = []
    for size in scale.idle_sockets:
        sockets += await site.clients(range(LAST + len(sockets), LAST + size))
        await asyncio.sleep(0.5)
        used.append(memory_bytes(site, "web") - empty)
    crowded = await first_token_ms(site, scale.first_tokens // 2)
    await _closed(sockets)
    await asyncio.sleep(1.0)
    alone += await first_token_ms(site, scale.first_tokens // 2)  # before and after, because machines drift
    most = scale.idle_sockets[-1]
    findings.lines["P5"] = Measured(
        (used[-1] / most / 1024, percentile(crowded, 50) - percentile(alone, 50)),
        {
            "sockets": most,
            "web_empty_mb": round(empty / 2**20, 1),
            "first_token_alone_ms": spread(alone),
            "first_token_crowded_ms": spread(crowded),
        },
    )
    megabytes = tuple(round(size / 2**20, 2) for size in used)
    findings.growths.append(Growth("P5", "memory of idle sockets, MB", scale.idle_sockets, megabytes))


async def _closed(sockets: list[SocketClient]) -> None:
    for socket in sockets:
        await socket.close()


async def measure_watchers(site: Site, scale: Scale, findings: Findings) -> None:
    speaker = await site.client(0).open()
    watchers = [SocketClient(speaker.target, speaker.session_id) for _ in range(scale.watchers)]
    for first in range(0, len(watchers), 50):
        await asyncio.gather(*(watcher.open() for watcher in watchers[first : first + 50]))
    for watcher in watchers:
        watcher.deaf = True
    await asyncio.sleep(0.5)
    before, frames = cpu_seconds(site)["web"], sum(watcher.frames for watcher in watchers)
    reading = await played(speaker, WATCHED)
    await asyncio.sleep(0.2)
    used = cpu_seconds(site)["web"] - before
    delivered = sum(watcher.frames for watcher in watchers) - frames
    await _closed([speaker, *watchers])
    findings.lines["P4"] = Measured(
        (delivered / used,),
        {
            "watchers": scale.watchers,
            "delivered": delivered,
            "web_cpu_seconds": round(used, 2),
            "events_of_the_turn": reading.events,
            "seconds": round((reading.ended_at - reading.asked_at) / 1e9, 2),
        },
    )
