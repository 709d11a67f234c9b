"""Runs probes side by side, each within a hard limit; none raises, none tells a credential (D7)."""

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
SLOW_TIMEOUT_SECONDS = 5.0  # for what may be far away
SLOW_GROUPS = frozenset(
    {"storage", "mail", "workers", "providers", "payments", "platforms", "webhooks", "channels", "tools"}
)
LOCAL_TIMEOUT_SECONDS = (
    60.0  # our own code, which asks nobody: only a busy machine makes it slow, and that is no fault of it
)

_draining = threading.Event()


@dataclass(frozen=True, kw_only=True)
class ProbeFinding:
    """What a probe has to say; the caller adds its name and how long it took."""

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
    """Say what an operating system said; other texts may hold addresses or credentials."""
    return (
        str(problem.strerror) if isinstance(problem, OSError) and problem.strerror else type(problem).__name__
    )


def start_draining() -> None:
    """This process is about to leave: from now on it is not ready (A-D15.2)."""
    _draining.set()


def is_draining() -> bool:
    return _draining.is_set()


def run_probes(probes: Mapping[str, Probe], *, longest_seconds: float | None = None) -> list[ProbeResult]:
    """All side by side; each answers or is given up at its own limit."""
    began = time.monotonic()
    started = {name: _start_probe(name, probe) for name, probe in probes.items()}
    return [
        _wait_for_result(name, future, began + _get_timeout(name, longest_seconds or SLOW_TIMEOUT_SECONDS))
        for name, future in started.items()
    ]


def _start_probe(name: str, probe: Probe) -> Future[ProbeResult]:
    """On a thread that nobody waits for: a probe that hangs must not keep the process."""
    future: Future[ProbeResult] = Future()
    threading.Thread(
        target=lambda: future.set_result(_run_timed(name, probe)), name=f"probe {name}", daemon=True
    ).start()
    return future


def _get_timeout(name: str, longest_seconds: float) -> float:
    """`providers.openai` has the limit of `providers`; the settings' own checks import what they check."""
    group = name.partition(".")[0]
    if group in ("config", "accounts"):  # a password's hash is slow on purpose
        return LOCAL_TIMEOUT_SECONDS
    return min(SLOW_TIMEOUT_SECONDS if group in SLOW_GROUPS else QUICK_TIMEOUT_SECONDS, longest_seconds)


def redact_url(url: str) -> str:
    """An address as people may see it: scheme://host:port/path, whoever logs in there."""
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
    """A probe that could not say for itself what is wrong."""
    return ProbeFinding(
        status="fail", detail=what, next_step=f"Is it up, and are the settings of {name} right?"
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
    """A dead server is told once: what merely needs it is skipped (A-D17.1)."""
    dead = {result.name for result in results if result.status == "fail"}
    needs = {
        "migrations": {"postgres"},
        "postgres.writes": {"postgres"},
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
