"""Kill a worker in the middle of a turn and measure how long clients wait for its successor (P9, P19)."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass

from bench.bars import Findings, Measured
from bench.clients import Prompt, SocketClient
from bench.options import Scale
from bench.readings import Reading, now
from bench.site import START_SECONDS, BenchProblem, Site

SHORT = Prompt(tokens=150, first_ms=20, gap_ms=20)  # 3 s
TEN_SECONDS = Prompt(tokens=500, first_ms=20, gap_ms=20)
OWN_SECONDS = 10.0


@dataclass
class Killed:
    reading: Reading
    killed_at: int

    @property
    def recovering_seconds(self) -> float:
        return (self.reading.recovering_at - self.killed_at) / 1e9

    @property
    def continued_seconds(self) -> float:
        return (self.reading.continued_at - self.killed_at) / 1e9

    def as_detail(self) -> dict[str, object]:
        reading = self.reading
        return {
            "recovering_after_s": round(self.recovering_seconds, 3),
            "continued_after_s": round(self.continued_seconds, 3),
            "turn_seconds": round((reading.ended_at - reading.asked_at) / 1e9, 3),
            "ending": reading.ending,
            "tokens": reading.tokens,
            "wrong_tokens": reading.wrong,
        }


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    """Run two workers, so that the survivor takes over without waiting for a restart."""
    site.add_worker()
    client = await site.client(0).open()
    runs = [await _killed(site, client, SHORT, after_seconds=1.0) for _ in range(scale.kills)]
    long = await _killed(site, client, TEN_SECONDS, after_seconds=5.0)
    await client.close()
    worst = max(run.continued_seconds for run in runs)
    findings.lines["P9"] = Measured((worst,), {"kills": [run.as_detail() for run in runs]})
    beyond = (long.reading.ended_at - long.reading.asked_at) / 1e9 - OWN_SECONDS
    findings.lines["P19"] = Measured((long.continued_seconds, beyond), long.as_detail())


async def _killed(site: Site, client: SocketClient, prompt: Prompt, *, after_seconds: float) -> Killed:
    await _two_workers(site)
    reading = client.begin(prompt)
    await asyncio.wait_for(client.following.first.wait(), 30)
    name = _holder(site, client.session_id)
    await asyncio.sleep(after_seconds - (now() - reading.asked_at) / 1e9)
    process = site.processes.pop(name)
    killed_at = now()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    await client.following.finished(60)
    site.add_worker()
    if not reading.continued_at:
        raise BenchProblem(
            f"a killed worker's turn ended as {reading.ending} {reading.problem} without continuing"
        )
    return Killed(reading, killed_at)


def _holder(site: Site, session_id: str) -> str:
    """Return the worker process that runs the session's turn."""
    running = "SELECT worker FROM copilot_turn WHERE status = 'running' AND session_id = %s"
    [(worker,)] = site.query(running, session_id)
    pid = int(worker.rsplit("-", 2)[1])
    return next(name for name, process in site.processes.items() if process.pid == pid)


async def _two_workers(site: Site) -> None:
    """Wait until the dead worker's heartbeat has expired and its successor's has arrived."""
    for _ in range(int(START_SECONDS / 0.2)):
        alive = {process.pid for name, process in site.processes.items() if name.startswith("turns")}
        rows = site.query(
            "SELECT pid FROM copilot_workerheartbeat WHERE last_beat_at > now() - interval '5 seconds' AND NOT draining"
        )
        if len(alive & {pid for (pid,) in rows}) >= 2:
            await asyncio.sleep(1.0)  # it is connected to the broker too
            return
        await asyncio.sleep(0.2)
    raise BenchProblem("a second worker did not start")
