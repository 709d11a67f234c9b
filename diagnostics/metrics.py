"""What every process has counted, and what the latest look at the system saw, as Prometheus reads it (D16)."""

from __future__ import annotations

import hmac
import logging
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.conf import settings
from django.db import Error, connection
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from config.core.errors import ServiceUnavailable
from copilot.worker import health
from diagnostics import inventory, snapshot
from diagnostics.cached_value import CachedValue
from diagnostics.probes import runner, servers
from diagnostics.work_ages import read_work_ages

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MULTIPROC_DIR_VARIABLE = (
    "PROMETHEUS_MULTIPROC_DIR"  # read by the library itself, before the first counter is made
)
PROBE_CACHE_SECONDS = 5.0
MAX_STALE_SECONDS = (
    60.0  # a scrape tells what the one before it found, rather than wait; after a pause it looks itself
)
MAX_CONCURRENT_SCRAPES = 8
SCRAPE_TIMEOUT_SECONDS = 5.0  # for a caller to say what it wants, and to take the answer
_log = logging.getLogger(__name__)
_LIVE_GAUGE_PATTERN = re.compile(r"gauge_live\w+_(\d+)\.db")


def render_metrics() -> bytes:
    return generate_latest(_build_registry()) + generate_latest(_system_registry)


# --- who may look ------------------------------------------------------------------------------------


def is_scraping_enabled() -> bool:
    """Whether anybody may look; without a token and a network nobody can."""
    return bool(settings.METRICS_TOKEN or settings.METRICS_ALLOWED_CIDRS)


def has_metrics_token(authorization: str) -> bool:
    scheme, _, shown = authorization.partition(" ")
    token = settings.METRICS_TOKEN
    return bool(token) and scheme == "Bearer" and hmac.compare_digest(shown.encode(), token.encode())


def is_allowed_address(address: str) -> bool:
    try:
        caller = ip_address(address)
    except ValueError:
        return False
    return any(caller in ip_network(network, strict=False) for network in settings.METRICS_ALLOWED_CIDRS)


# --- from a worker -----------------------------------------------------------------------------------


def start_worker_metrics_server() -> WSGIServer | None:
    """Serve a Celery process's figures on METRICS_PORT, to whoever may scrape the web process's."""
    if not settings.METRICS_PORT:
        return None
    if not is_scraping_enabled():
        _log.warning("metrics_not_served: METRICS_PORT needs METRICS_TOKEN or METRICS_ALLOWED_CIDRS")
        return None
    server = make_server(
        "", settings.METRICS_PORT, _serve_worker_metrics, _MetricsServer, _MetricsRequestHandler
    )
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _serve_worker_metrics(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    authorization, address = environ.get("HTTP_AUTHORIZATION", ""), environ.get("REMOTE_ADDR", "")
    if not has_metrics_token(authorization) and not is_allowed_address(address):
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
        return [b""]
    body = generate_latest(_build_registry())
    start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))])
    return [body]


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Some answers at once; whoever comes beyond them is cut off, so that nobody fills a worker with threads."""

    daemon_threads = True
    address_family = socket.AF_INET
    _places = threading.BoundedSemaphore(MAX_CONCURRENT_SCRAPES)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up or says nothing is no error of ours."""


class _MetricsRequestHandler(WSGIRequestHandler):
    timeout = SCRAPE_TIMEOUT_SECONDS

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, *words: object) -> None:
        """Every scrape would be a line."""


# --- counted -----------------------------------------------------------------------------------------


def get_multiproc_directory() -> Path | None:
    """Where the processes of one host keep their figures side by side; None: each knows its own alone."""
    named = os.environ.get(MULTIPROC_DIR_VARIABLE, "")
    return Path(named) if named and Path(named).is_dir() else None


def _build_registry() -> CollectorRegistry:
    directory = get_multiproc_directory()
    if directory is None:
        return REGISTRY
    _remove_dead_gauges(directory)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return registry


def _remove_dead_gauges(directory: Path) -> None:
    """What a process has now goes with it, however it went; what it counted stays."""
    for path in directory.glob("gauge_live*.db"):
        found = _LIVE_GAUGE_PATTERN.fullmatch(path.name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            path.unlink(missing_ok=True)


# --- seen --------------------------------------------------------------------------------------------


class SystemCollector(Collector):
    """Gauges of the whole system, as they were at most a minute ago; what could not be read is left out, not zero."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # registering must not ask anybody

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summary = snapshot.get_stale_summary(seconds=MAX_STALE_SECONDS)
        by_status = {name: getattr(summary, name) for name in ("queued", "running", "waiting")}
        yield _build_gauge("executions", "Unfinished executions.", "status", by_status)
        depths = {name: depth for name, depth in (summary.broker_depth or {}).items() if name != "total"}
        yield _build_gauge("broker_depth", "Tasks that wait in the broker.", "queue", depths)
        orphaned = (summary.orphaned_running, summary.orphaned_queued)
        known = [number for number in orphaned if number is not None]
        yield _build_gauge(
            "orphaned", "Executions that nobody runs.", "", {"": sum(known) if known else None}
        )
        yield _build_gauge("stuck_queued", "Queued for too long.", "", {"": summary.stuck_queued})
        yield _build_gauge("cancel_backlog", "Stops not obeyed.", "", {"": summary.cancel_backlog})
        yield _build_gauge("workers", "Worker processes by their sign of life.", "status", _count_workers())
        yield from _collect_work_ages()
        asked = _cached_probes.get_stale(seconds=MAX_STALE_SECONDS)
        probes = {result.name: int(result.ok) for result in asked}
        yield _build_gauge("probe_ok", "Whether a server answers as it should.", "name", probes)
        yield _build_gauge("build_info", "The version that answers.", "version", {settings.VERSION: 1})


def _build_gauge(name: str, words: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"pilothouse_{name}", words, labels=[label] if label else [])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key] if label else [], value)
    return family


def _collect_work_ages() -> Iterator[GaugeMetricFamily]:
    """How long ago the loops and queues did something last: a figure that grows when its source dies."""
    try:
        reaper, ages = health.get_sweep_age_seconds(), read_work_ages(rows_too=False)
    except ServiceUnavailable:
        return
    yield _build_gauge("reaper_age_seconds", "Since the last completed sweep.", "", {"": reaper})
    yield _build_gauge("watch_age_seconds", "Since findings were looked at.", "", {"": ages.watch_seconds})
    yield _build_gauge(
        "scheduler_age_seconds", "Since Celery beat sent a job.", "", {"": ages.scheduler_seconds}
    )
    yield _build_gauge("queue_age_seconds", "Since a task was done.", "queue", ages.queue_seconds)


def _count_workers() -> dict[str, float | None]:
    try:
        seen = health.list_workers()
    except Error:
        connection.close()
        return {}
    counted = Counter(inventory.classify_worker(worker.silent_seconds) for worker in seen)
    deaf = sum(inventory.is_worker_deaf(worker) for worker in seen)
    return {**{status: counted[status] for status in ("alive", "late", "lost")}, "deaf": deaf}


def get_probe_results() -> list[runner.ProbeResult]:
    """What the servers that everything rests on said last, at most five seconds ago."""
    return _cached_probes.get()


_cached_probes = CachedValue(
    lambda: runner.skip_dependents(runner.run_probes(servers.ESSENTIAL_PROBES)), PROBE_CACHE_SECONDS
)
_system_registry = CollectorRegistry()
_system_registry.register(SystemCollector())
