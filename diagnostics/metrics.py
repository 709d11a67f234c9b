"""Serve what every process has counted, and gauges of the whole system, to Prometheus."""

from __future__ import annotations

import hmac
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

import structlog
from django.conf import settings
from django.db import Error, connection
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from config.core.errors import ServiceUnavailable
from copilot.worker import health
from diagnostics import inventory, snapshot
from diagnostics.probes import runner, servers
from diagnostics.queries import CachedValue
from diagnostics.work_ages import read_work_ages

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

# Read by the library itself, before the first counter is created.
MULTIPROC_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PROBE_CACHE_SECONDS = 5.0
# A scrape returns the previous figures rather than wait; after a long pause it computes new ones.
MAX_STALE_SECONDS = 60.0
MAX_CONCURRENT_SCRAPES = 8
SCRAPE_TIMEOUT_SECONDS = 5.0  # to receive a request and send the answer
log = structlog.get_logger(__name__)
_LIVE_GAUGE_PATTERN = re.compile(r"gauge_live\w+_(\d+)\.db")


def render_metrics() -> bytes:
    return generate_latest(_build_registry()) + generate_latest(_system_registry)


# --- Access ---


def is_scraping_enabled() -> bool:
    """Tell whether scraping is allowed at all: it needs a token or a network."""
    return bool(settings.METRICS_TOKEN or settings.METRICS_ALLOWED_CIDRS)


def has_metrics_token(authorization: str) -> bool:
    scheme, _, token_sent = authorization.partition(" ")
    token = settings.METRICS_TOKEN
    return bool(token) and scheme == "Bearer" and hmac.compare_digest(token_sent.encode(), token.encode())


def is_allowed_address(address: str) -> bool:
    try:
        caller = ip_address(address)
    except ValueError:
        return False
    return any(caller in ip_network(network, strict=False) for network in settings.METRICS_ALLOWED_CIDRS)


# --- Metrics of a worker ---


def start_worker_metrics_server() -> WSGIServer | None:
    """Serve a Celery process's metrics on METRICS_PORT, with the same access rules as the web process."""
    if not settings.METRICS_PORT:
        return None
    if not is_scraping_enabled():
        log.warning("metrics_not_served", reason="METRICS_PORT needs METRICS_TOKEN or METRICS_ALLOWED_CIDRS")
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
    """Answer a few requests at once and drop the others, so that nobody fills a worker with threads."""

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
        """Ignore callers that disconnect or send nothing."""


class _MetricsRequestHandler(WSGIRequestHandler):
    timeout = SCRAPE_TIMEOUT_SECONDS

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, *words: object) -> None:
        """Log nothing: every scrape would be a line."""


# --- Process metrics ---


def get_multiproc_directory() -> Path | None:
    """Return the directory in which the processes of one host share their metrics, or None."""
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
    """Remove the live gauges of dead processes; their counters stay."""
    for path in directory.glob("gauge_live*.db"):
        match = _LIVE_GAUGE_PATTERN.fullmatch(path.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            path.unlink(missing_ok=True)


# --- System metrics ---


class SystemCollector(Collector):
    """Gauges of the whole system, at most a minute old. What could not be read is left out, not zero."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # registering must not query anything

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summary = snapshot.get_stale_summary(seconds=MAX_STALE_SECONDS)
        by_status = {name: getattr(summary, name) for name in ("queued", "running", "waiting")}
        yield _build_gauge("executions", "Unfinished executions.", "status", by_status)
        depths = {name: depth for name, depth in (summary.broker_depth or {}).items() if name != "total"}
        yield _build_gauge("broker_depth", "Tasks waiting in the broker.", "queue", depths)
        orphaned = (summary.orphaned_running, summary.orphaned_queued)
        known = [number for number in orphaned if number is not None]
        yield _build_gauge(
            "orphaned", "Executions that no worker runs.", "", {"": sum(known) if known else None}
        )
        yield _build_gauge("stuck_queued", "Executions queued for too long.", "", {"": summary.stuck_queued})
        yield _build_gauge(
            "cancel_backlog", "Stops not carried out in time.", "", {"": summary.cancel_backlog}
        )
        yield _build_gauge("workers", "Worker processes by liveness.", "status", _count_workers())
        yield from _collect_work_ages()
        results = _cached_probes.get_stale(seconds=MAX_STALE_SECONDS)
        probes = {result.name: int(result.ok) for result in results}
        yield _build_gauge("probe_ok", "1 if a server answers correctly, else 0.", "name", probes)
        yield _build_gauge("build_info", "The running version.", "version", {settings.VERSION: 1})


def _build_gauge(
    name: str, description: str, label: str, values: Mapping[str, float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"pilothouse_{name}", description, labels=[label] if label else [])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key] if label else [], value)
    return family


def _collect_work_ages() -> Iterator[GaugeMetricFamily]:
    """Yield how long ago the loops and queues last did something: these grow when their source dies."""
    try:
        reaper, ages = health.get_sweep_age_seconds(), read_work_ages(rows_too=False)
    except ServiceUnavailable:
        return
    yield _build_gauge(
        "reaper_age_seconds", "Seconds since the reaper's last completed sweep.", "", {"": reaper}
    )
    yield _build_gauge(
        "watch_age_seconds", "Seconds since findings were last evaluated.", "", {"": ages.watch_seconds}
    )
    yield _build_gauge(
        "scheduler_age_seconds",
        "Seconds since Celery beat last sent a job.",
        "",
        {"": ages.scheduler_seconds},
    )
    yield _build_gauge(
        "queue_age_seconds", "Seconds since a task of the queue was last done.", "queue", ages.queue_seconds
    )


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
    """Return the latest results of the essential probes, at most five seconds old."""
    return _cached_probes.get()


_cached_probes = CachedValue(
    lambda: runner.skip_dependents(runner.run_probes(servers.ESSENTIAL_PROBES)), PROBE_CACHE_SECONDS
)
_system_registry = CollectorRegistry()
_system_registry.register(SystemCollector())
