"""Run probes side by side, each with a deadline. None raises, and none reveals credentials."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from django.conf import settings

ProbeStatus = Literal["ok", "warn", "fail", "skip"]
QUICK_TIMEOUT_SECONDS = 1.0
SLOW_TIMEOUT_SECONDS = 5.0  # for services that may be far away
SLOW_GROUPS = frozenset(
    {"storage", "mail", "workers", "providers", "payments", "platforms", "webhooks", "channels", "tools"}
)
# Local checks contact nobody; only a busy machine makes them slow.
LOCAL_TIMEOUT_SECONDS = 60.0

_draining = threading.Event()


@dataclass(frozen=True, kw_only=True)
class ProbeFinding:
    """The finding of a probe; the runner adds its name and duration."""

    status: ProbeStatus = "ok"
    detail: str = ""
    next_step: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    name: str
    status: ProbeStatus
    latency_ms: int
    detail: str
    next_step: str
    checked_at: str

    @property
    def ok(self) -> bool:
        return self.status != "fail"


Probe = Callable[[], ProbeFinding]


def describe_failure(problem: BaseException) -> str:
    """Return the operating system's message; other messages may hold addresses or credentials."""
    return (
        str(problem.strerror) if isinstance(problem, OSError) and problem.strerror else type(problem).__name__
    )


def start_draining() -> None:
    """Report this process as not ready from now on, because it is about to exit."""
    _draining.set()


def is_draining() -> bool:
    return _draining.is_set()


def run_probes(probes: Mapping[str, Probe], *, longest_seconds: float | None = None) -> list[ProbeResult]:
    """Run all probes side by side; each answers or is abandoned at its deadline."""
    began = time.monotonic()
    started = {name: _start_probe(name, probe) for name, probe in probes.items()}
    return [
        _wait_for_result(name, future, began + _get_timeout(name, longest_seconds or SLOW_TIMEOUT_SECONDS))
        for name, future in started.items()
    ]


def _start_probe(name: str, probe: Probe) -> Future[ProbeResult]:
    """Start a probe on a daemon thread, so that one that hangs does not keep the process alive."""
    future: Future[ProbeResult] = Future()
    threading.Thread(
        target=lambda: future.set_result(_run_timed(name, probe)), name=f"probe {name}", daemon=True
    ).start()
    return future


def _get_timeout(name: str, longest_seconds: float) -> float:
    """Return the limit of the probe's group. Checks of the settings get longer because they import what they check."""
    group = name.partition(".")[0]
    if group in ("config", "accounts"):  # a password's hash is slow on purpose
        return LOCAL_TIMEOUT_SECONDS
    return min(SLOW_TIMEOUT_SECONDS if group in SLOW_GROUPS else QUICK_TIMEOUT_SECONDS, longest_seconds)


def redact_url(url: str) -> str:
    """Return a URL without credentials: scheme://host:port/path."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _wait_for_result(name: str, future: Future[ProbeResult], deadline: float) -> ProbeResult:
    try:
        return future.result(timeout=max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return _build_result(name, _build_failure(name, "no answer in time"), began=None)


def _run_timed(name: str, probe: Probe) -> ProbeResult:
    began = time.monotonic()
    try:
        finding = probe()
    except Exception as problem:  # noqa: BLE001 - a probe reports whatever goes wrong; its text may hold addresses
        finding = _build_failure(name, type(problem).__name__)
    return _build_result(name, finding, began=began)


def _build_failure(name: str, what: str) -> ProbeFinding:
    return ProbeFinding(
        status="fail",
        detail=what,
        next_step=f"Check that it is up and that the settings of {name} are correct.",
    )


def _build_result(name: str, finding: ProbeFinding, *, began: float | None) -> ProbeResult:
    return ProbeResult(
        name=name,
        status=finding.status,
        latency_ms=round((time.monotonic() - began) * 1000) if began is not None else 0,
        detail=finding.detail,
        next_step=finding.next_step,
        checked_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def skip_dependents(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    """Report a dead server once: skip the probes that need it."""
    dead = {result.name for result in results if result.status == "fail"}
    needs = {
        "migrations": {"postgres"},
        "postgres.writes": {"postgres"},
        "postgres.pooler": {"postgres"},
        "workers": {"postgres", "postgres.writes", "redis"},
        "scheduler": {"postgres", "postgres.writes", "redis"},
        "reaper": {"redis", "workers", "postgres.writes"},
        "redis.keys": {"postgres", "redis", "migrations"},
        "accounts.demo": {"postgres", "migrations"},
        "tools.models": {"postgres", "migrations", "redis"},
        "clock": {"postgres", "redis"},
        "webhooks.stripe": {"payments.stripe"},
        "webhooks.telegram": {"platforms.telegram"},
    }
    if settings.CELERY_BROKER_URL == settings.REDIS_URL:
        needs["broker"] = {"redis"}
    return [
        replace(result, status="skip", detail=f"needs {', '.join(sorted(blocked))}", next_step="")
        if (blocked := needs.get(result.name, set()) & dead)
        else result
        for result in results
    ]
