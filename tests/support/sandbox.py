"""Run programs in the sandbox and find what they leave behind."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from copilot.chat.turn_context import TurnContext
from tests.support.tool_calls import use


async def run_bash(context: TurnContext, command: str, **arguments: Any) -> dict[str, Any]:
    outcome = await use(context, "bash_exec", command=command, **arguments)
    assert outcome.success, outcome.content
    return dict(json.loads(outcome.content))


def list_processes(mark: str) -> list[str]:
    """List processes of this machine whose command contains `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in command:
                found.append(entry.name)
    return found


async def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.02)
