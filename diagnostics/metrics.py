"""What every process has counted, and what the latest look at the system saw, as Prometheus reads it (D16)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from django.conf import settings
from django.db import Error, connection
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from copilot.errors import Unavailable
from copilot.queries import inventory as seen_now
from diagnostics import inventory, snapshot
from diagnostics.probes import running, servers
from diagnostics.shared import Shared
from diagnostics.work_ages import read_work_ages

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # read by the library itself, before the first counter is made
PROBES_SECONDS = 5.0
AT_HAND_SECONDS = (
    60.0  # a scrape tells what the one before it found, rather than wait; after a pause it looks itself
)
_LIVE = re.compile(r"gauge_live\w+_(\d+)\.db")


def exposition() -> bytes:
    return generate_latest(_counted()) + generate_latest(_seen)


def serve_from_worker() -> None:
    """A Celery process has no web door: where METRICS_PORT is set, it opens a small one of its own."""
    if settings.METRICS_PORT:
        start_http_server(settings.METRICS_PORT, registry=_counted())


# --- counted -----------------------------------------------------------------------------------------


def shared_directory() -> Path | None:
    """Where the processes of one host keep their figures side by side; None: each knows its own alone."""
    named = os.environ.get(SHARED, "")
    return Path(named) if named and Path(named).is_dir() else None


def _counted() -> CollectorRegistry:
    directory = shared_directory()
    if directory is None:
        return REGISTRY
    _forget_the_dead(directory)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return registry


def _forget_the_dead(directory: Path) -> None:
    """What a process has now goes with it, however it went; what it counted stays."""
    for path in directory.glob("gauge_live*.db"):
        found = _LIVE.fullmatch(path.name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            path.unlink(missing_ok=True)


# --- seen --------------------------------------------------------------------------------------------


class Seen(Collector):
    """Gauges of the whole system, as they were at most a minute ago; what could not be read is left out, not zero."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # registering must not ask anybody

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summary = snapshot.summary_at_hand(seconds=AT_HAND_SECONDS)
        by_status = {name: getattr(summary, name) for name in ("queued", "running", "waiting")}
        yield _family("executions", "Unfinished executions.", "status", by_status)
        depths = {name: depth for name, depth in (summary.broker_depth or {}).items() if name != "total"}
        yield _family("broker_depth", "Tasks that wait in the broker.", "queue", depths)
        orphaned = (summary.orphaned_running, summary.orphaned_queued)
        known = [number for number in orphaned if number is not None]
        yield _family("orphaned", "Executions that nobody runs.", "", {"": sum(known) if known else None})
        yield _family("stuck_queued", "Queued for too long.", "", {"": summary.stuck_queued})
        yield _family("cancel_backlog", "Stops not obeyed.", "", {"": summary.cancel_backlog})
        yield _family("workers", "Worker processes by their sign of life.", "status", _workers())
        yield from _ages_of_work()
        asked = _probes.at_hand(seconds=AT_HAND_SECONDS)
        probes = {result.name: int(result.ok) for result in asked}
        yield _family("probe_ok", "Whether a server answers as it should.", "name", probes)
        yield _family("build_info", "The version that answers.", "version", {settings.VERSION: 1})


def _family(name: str, words: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"pilothouse_{name}", words, labels=[label] if label else [])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key] if label else [], value)
    return family


def _ages_of_work() -> Iterator[GaugeMetricFamily]:
    """How long ago the loops and queues did something last: a figure that grows when its source dies."""
    try:
        reaper, ages = seen_now.reaper_silent_seconds(), read_work_ages(rows_too=False)
    except Unavailable:
        return
    yield _family("reaper_age_seconds", "Since the last completed sweep.", "", {"": reaper})
    yield _family("watch_age_seconds", "Since findings were looked at.", "", {"": ages.watch_seconds})
    yield _family("scheduler_age_seconds", "Since Celery beat sent a job.", "", {"": ages.scheduler_seconds})
    yield _family("queue_age_seconds", "Since a task was done.", "queue", ages.queue_seconds)


def _workers() -> dict[str, float | None]:
    try:
        seen = seen_now.workers_seen()
    except Error:
        connection.close()
        return {}
    counted = Counter(inventory.status_of(worker.silent_seconds) for worker in seen)
    deaf = sum(inventory.is_deaf(worker) for worker in seen)
    return {**{status: counted[status] for status in ("alive", "late", "lost")}, "deaf": deaf}


def probed() -> list[running.Result]:
    """What the servers that everything rests on said last, at most five seconds ago."""
    return _probes.get()


_probes = Shared(lambda: running.without_echo(running.run(servers.ESSENTIAL)), PROBES_SECONDS)
_seen = CollectorRegistry()
_seen.register(Seen())
