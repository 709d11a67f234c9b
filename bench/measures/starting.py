"""Measure the time from the run command to a served page, with an empty data directory (P14)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bars import Findings, Measured
from bench.installation import ROOT, answers
from bench.site import BenchProblem
from config.dev.servers import find_free_port, signal_on_parent_death

LONGEST_SECONDS = 90.0
FOREIGN = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "PILOTHOUSE_ENVIRONMENT", "SITE_URL")


def measure(findings: Findings) -> None:
    directory = Path(tempfile.mkdtemp(prefix="pilothouse-bench-run-"))
    directory.chmod(0o755)
    port = find_free_port()
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= {"PILOTHOUSE_VAR": str(directory / "var"), "PORT": str(port)}
    with (directory / "run.log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "config.dev.run"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=signal_on_parent_death(signal.SIGTERM),
        )
    try:
        page, ready = _served(process, f"http://127.0.0.1:{port}", began)
    finally:
        _end(process)
        shutil.rmtree(directory, ignore_errors=True)
    findings.lines["P14"] = Measured(
        (max(page, ready),), {"page_s": round(page, 2), "ready_s": round(ready, 2)}
    )


def _served(process: subprocess.Popen[bytes], url: str, began: float) -> tuple[float, float]:
    """Return when the first page was served, and when the site reported that it was ready."""
    times = []
    for path in ("/", "/readyz"):
        while not answers(url + path):
            if process.poll() is not None or time.monotonic() - began > LONGEST_SECONDS:
                raise BenchProblem(f"the run command did not serve {path}")
            time.sleep(0.02)
        times.append(time.monotonic() - began)
    return times[0], times[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()
    process.wait()
