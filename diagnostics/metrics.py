"""What every process has counted, as Prometheus reads it (D16)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from django.conf import settings
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # read by the library itself, before the first counter is made
_LIVE = re.compile(r"gauge_live\w+_(\d+)\.db")


def exposition() -> bytes:
    return generate_latest(_counted())


def serve_from_worker() -> None:
    """A Celery process has no web door: where METRICS_PORT is set, it opens a small one of its own."""
    if settings.METRICS_PORT:
        start_http_server(settings.METRICS_PORT, registry=_counted())


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
