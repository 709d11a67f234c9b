"""Measure whether long conversations cost more to open and to continue, in time and SQL (P10, P12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from bench.bars import Findings, Growth, Measured
from bench.clients import Prompt, SocketClient, http_session
from bench.measures.first_token import played
from bench.meters import SqlLog, sql_log
from bench.options import Scale
from bench.readings import percentile, spread
from bench.seed import HISTORIES
from bench.site import BenchProblem, Site

AT_ONCE = Prompt(tokens=3)
TOOL = {"name": "current_time", "arguments": "{}"}
LOOKS = 3  # repetitions; the minimum excludes what ran at the same time


@dataclass
class Timed:
    """Milliseconds at one size."""

    page: list[float]
    snapshot: list[float]
    turn: list[float]

    @property
    def medians(self) -> tuple[float, float, float]:
        return percentile(self.page, 50), percentile(self.snapshot, 50), percentile(self.turn, 50)


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    """Alternate the sizes, so that a slow moment of the machine affects all of them."""
    timed = {size: Timed([], [], []) for size in HISTORIES}
    async with http_session() as http:
        for number in range(scale.opens):
            for size, session_id in site.seeded.histories.items():
                await _time(site, http, session_id, timed[size], warm=number < 2)
    small, large = timed[HISTORIES[0]].medians, timed[HISTORIES[-1]].medians
    page, snapshot, turn = (big / little for big, little in zip(large, small, strict=True))
    detail = {
        f"{size:,} messages": {
            "page_ms": spread(one.page),
            "snapshot_ms": spread(one.snapshot),
            "first_token_ms": spread(one.turn),
        }
        for size, one in timed.items()
    }
    findings.lines["P10"] = Measured(
        (max(page, snapshot), turn), {**detail, "page_ratio": page, "snapshot_ratio": snapshot}
    )
    for place, cost in enumerate(("page open, ms", "socket open, ms", "turn start, ms")):
        values = tuple(round(timed[size].medians[place], 2) for size in HISTORIES)
        findings.growths.append(Growth("P10", cost, HISTORIES, values))


async def _time(
    site: Site, http: aiohttp.ClientSession, session_id: str, timed: Timed, *, warm: bool
) -> None:
    page = await _open_page(site, http, session_id)
    client = SocketClient(site.target(0), session_id)
    began = time.perf_counter()
    await client.open()
    snapshot = 1000 * (time.perf_counter() - began)
    reading = await played(client, AT_ONCE)
    await client.close()
    if not warm:
        timed.page.append(page)
        timed.snapshot.append(snapshot)
        timed.turn.append(reading.first_ms)


async def _open_page(site: Site, http: aiohttp.ClientSession, session_id: str) -> float:
    target = site.target(0)
    began = time.perf_counter()
    async with http.get(f"{target.url}/chat/{session_id}/", headers=target.headers) as response:
        await response.read()
        if response.status != 200:
            raise BenchProblem(f"a session's page answered {response.status}")
    return 1000 * (time.perf_counter() - began)


# --- SQL -------------------------------------------------------------------------------------------------


@dataclass
class Counted:
    page: int
    socket: int
    submit: int
    turn: int
    step: float


async def measure_sql(site: Site, scale: Scale, findings: Findings) -> None:
    with sql_log(site) as log:
        counted = {
            size: await _count(site, log, session_id) for size, session_id in site.seeded.histories.items()
        }
    small = counted[HISTORIES[0]]
    added = [
        # concurrent writes may share a statement, so the count per step may be fractional
        float(round(max(getattr(one, name) - getattr(small, name) for one in counted.values())))
        for name in ("page", "submit", "step")
    ]
    detail: dict[str, object] = {f"{size:,} messages": vars(one) for size, one in counted.items()}
    findings.lines["P12"] = Measured(tuple(added), detail)


async def _count(site: Site, log: SqlLog, session_id: str) -> Counted:
    client = await SocketClient(site.target(0), session_id).open()
    async with http_session() as http:
        page = await _least(log, "web", lambda: _open_page(site, http, session_id))
    socket = await _least(log, "web", lambda: _open_and_close(site, session_id))
    submit = await _least(log, "web", lambda: played(client, AT_ONCE))
    turn = await _least(log, "turns", lambda: _settled(client, AT_ONCE))
    one = await _least(log, "turns", lambda: _settled(client, _tools(1)))
    five = await _least(log, "turns", lambda: _settled(client, _tools(5)))
    await client.close()
    return Counted(page, socket, submit, turn, (five - one) / 4)


def _tools(rounds: int) -> Prompt:
    return Prompt(tokens=3, more={"tools": [TOOL], "rounds": rounds})


async def _settled(client: SocketClient, prompt: Prompt) -> None:
    """Include what a turn writes just after its ending."""
    await played(client, prompt)
    await asyncio.sleep(0.1)


async def _open_and_close(site: Site, session_id: str) -> None:
    client = await SocketClient(site.target(0), session_id).open()
    await client.close()


async def _least(log: SqlLog, process: str, act: Callable[[], Awaitable[object]]) -> int:
    counts = []
    for _ in range(LOOKS):
        log.begin()
        await act()
        await asyncio.sleep(0.05)
        counts.append(len(log.statements(process)))
    return min(counts)
