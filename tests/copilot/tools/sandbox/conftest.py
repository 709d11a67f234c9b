"""Fixtures of the sandbox: a turn whose programs run, and the directory they run in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from copilot.chat.turn_context import TurnContext


@pytest.fixture
def working() -> None:
    """Skip where this machine cannot run a sandbox."""
    from copilot.tools.sandbox import bubblewrap

    if reason := bubblewrap.find_sandbox_problem():
        pytest.skip(reason)


@pytest.fixture
async def context(working: None, transactional_db: None) -> TurnContext:
    from config.core.db import run_in_thread
    from tests.support.tool_calls import make_context

    return await run_in_thread(make_context)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's working directories are made, and no other's; the sandboxed user passes through it."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place)
