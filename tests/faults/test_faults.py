"""The fault run in a minute, for CI (T9.6); `make faults` is the long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.installation import ROOT


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("redis", ["durable", "volatile"])
def test_a_minute_of_faults_loses_nothing(redis):
    """T9.6, A33.c2"""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--minutes", "1", "--people", "6", "--redis", redis],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_each_condition_is_seen_with_real_processes():
    """D3, D10, D22: produced by killing and freezing them, named by diagnostics, mended by the reaper or a worker"""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.conditions"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
