"""Fixtures of the wire: a provider of our own, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.provider_wires import FakeProvider


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    from tests.support.provider_wires import FakeProvider

    command = [sys.executable, "-m", "bench.fake_provider", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield FakeProvider(f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}")
        finally:
            process.terminate()
