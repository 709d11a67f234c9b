"""Measure the cost of an idle installation: CPU, SQL transactions, Redis commands and memory (P22)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import psutil

from bench.bars import Findings, Measured
from bench.meters import cpu_seconds, difference, redis_commands
from bench.options import Scale
from bench.site import SITE, Site

SETTLE_SECONDS = 10.0  # after the start, and after the bench's own statements
PRODUCT = (*SITE, "valkey", "postgres")


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, transactions, commands = cpu_seconds(site), _transactions(site), redis_commands(site)
    await asyncio.sleep(scale.idle_seconds)
    used = {name: after - cpu[name] for name, after in cpu_seconds(site).items() if name in PRODUCT}
    memory = {name: _memory_megabytes(site, name) for name in PRODUCT}
    sent = difference(commands, redis_commands(site))
    made = _transactions(site) - transactions
    seconds = scale.idle_seconds
    findings.lines["P22"] = Measured(
        (
            100 * sum(used.values()) / seconds,
            made / seconds,
            sum(sent.values()) / seconds,
            sum(memory.values()),
        ),
        {
            "cpu_percent": {name: round(100 * spent / seconds, 2) for name, spent in used.items()},
            "memory_megabytes": {name: round(size) for name, size in memory.items()},
            "redis_commands": sent,
        },
    )


def _transactions(site: Site) -> int:
    statement = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
    return int(site.query(statement)[0][0])


def _memory_megabytes(site: Site, name: str) -> float:
    """Return the proportional set size of a program and its children, which counts shared pages once."""
    total = 0
    for process in _list_processes(site, name):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 2**20


def _list_processes(site: Site, name: str) -> Iterator[psutil.Process]:
    server = {"valkey": site.valkey, "postgres": site.postgres}.get(name)
    process = server.process if server is not None else site.processes[name]
    assert process is not None
    root = psutil.Process(process.pid)
    yield root
    yield from root.children(recursive=True)
