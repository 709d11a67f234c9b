"""Measure the processes of a site: CPU, memory, Redis commands, SQL statements."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
import redis

from bench.site import Site

COSTING = ("web", "turns", "valkey", "postgres")  # their CPU counts toward the cost of a token (P15)
SQL_LINE = re.compile(rb"^\S+ \S+ \S+ \[(\d+)\] LOG:  (?:statement|execute [^:]+): ?(.*)$")
BEATS = re.compile(rb"workerheartbeat|advisory|^SELECT 1$")  # heartbeats of a worker belong to no turn


# --- CPU -------------------------------------------------------------------------------------------------


def cpu_seconds(site: Site) -> dict[str, float]:
    """CPU time used so far, by part of the site."""
    used = {name: _own(site.process(name)) for name in ("web", "turns", "provider", "maintenance")}
    used["background"] = _descendants(site.process("background"))
    assert site.valkey.process is not None
    assert site.postgres.process is not None
    used["valkey"] = _own(psutil.Process(site.valkey.process.pid))
    used["postgres"] = _descendants(psutil.Process(site.postgres.process.pid))
    used["load"] = _own(psutil.Process())
    return used


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Foreign:
    """Return how many cores other programs used; above a small value the figures are unreliable."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own = _busy(), _descendants(psutil.Process())

    def cores(self) -> float:
        busy, own = _busy() - self._busy, _descendants(psutil.Process()) - self._own
        return max(0.0, busy - own) / max(0.001, time.monotonic() - self._began)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)


def _descendants(process: psutil.Process) -> float:
    """Return the CPU time of a process and its children, including those that have exited."""
    times = process.cpu_times()
    total = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += _descendants(child)
    return total


@dataclass
class Window:
    """The difference between two readings."""

    seconds: float
    cpu: dict[str, float]
    tokens: int
    redis_commands: dict[str, int]

    @property
    def product_cpu(self) -> float:
        return sum(self.cpu[name] for name in COSTING)


async def watch(site: Site, tokens: Callable[[], int], seconds: float) -> Window:
    """Take a reading; `tokens` counts what clients have received so far."""
    commands, cpu, seen, began = redis_commands(site), cpu_seconds(site), tokens(), time.monotonic()
    await asyncio.sleep(seconds)
    after = cpu_seconds(site)
    after_commands = redis_commands(site)
    return Window(
        seconds=time.monotonic() - began,
        cpu={name: round(after[name] - cpu[name], 3) for name in after},
        tokens=tokens() - seen,
        redis_commands=difference(commands, after_commands),
    )


# --- memory ----------------------------------------------------------------------------------------------


def memory_bytes(site: Site, name: str) -> int:
    """Return the memory that is freed when the process exits, without pages it shares."""
    return int(site.process(name).memory_full_info().uss)


# --- Redis -----------------------------------------------------------------------------------------------


def redis_commands(site: Site) -> dict[str, int]:
    """Return the calls by command so far, including those inside scripts."""
    with redis.Redis.from_url(site.valkey.url) as client:
        stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    ours = ("info", "client|setinfo", "auth", "hello")  # the meter's own commands
    changed = {name: calls - before.get(name, 0) for name, calls in after.items() if name not in ours}
    return {name: calls for name, calls in changed.items() if calls}


# --- SQL -------------------------------------------------------------------------------------------------


class SqlLog:
    """Count statements from the server's log, which is switched on for the measure only."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._place = 0

    def begin(self) -> None:
        self._place = self._site.postgres.log.stat().st_size

    def statements(self, name: str) -> list[str]:
        """Return the statements of the named process since `begin`."""
        backends = self._backends(self._site.processes[name].pid)
        with self._site.postgres.log.open("rb") as log:
            log.seek(self._place)
            text = log.read()
        found: list[bytes] = []
        ours = False
        for line in text.split(b"\n"):
            if matched := SQL_LINE.match(line):
                ours = int(matched[1]) in backends
                if ours:
                    found.append(matched[2])
            elif ours and line.startswith(b"\t"):
                found[-1] += b" " + line.strip()
            else:
                ours = False
        return [sql.decode().strip() for sql in found if not BEATS.search(sql.strip())]

    def _backends(self, pid: int) -> set[int]:
        connections = psutil.Process(pid).net_connections("tcp")
        ports = {one.laddr.port for one in connections if one.laddr}
        rows = self._site.query("SELECT pid, client_port FROM pg_stat_activity WHERE client_port IS NOT NULL")
        return {backend for backend, port in rows if port in ports}


@contextlib.contextmanager
def sql_log(site: Site) -> Iterator[SqlLog]:
    site.query("ALTER SYSTEM SET log_statement = 'all'")
    site.query("SELECT pg_reload_conf()")
    time.sleep(0.3)  # backends read their settings between statements
    try:
        yield SqlLog(site)
    finally:
        site.query("ALTER SYSTEM RESET log_statement")
        site.query("SELECT pg_reload_conf()")
