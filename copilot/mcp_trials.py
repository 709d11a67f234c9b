"""Tries an MCP server for somebody who wants to know now, and remembers what came of it (A28)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from asgiref.sync import async_to_sync

from copilot import mcp
from copilot.errors import TooMany
from copilot.live import counters
from copilot.models import McpServer

TRIALS_PER_MINUTE = 10
TRIALS_AT_ONCE = 4  # in one process: each holds a thread of it for as long as connecting may take
_free_trials = threading.BoundedSemaphore(TRIALS_AT_ONCE)


@dataclass(frozen=True, kw_only=True)
class Tried:
    error: str
    tools: tuple[mcp.Listed, ...] = ()


def run(user_id: int, row: McpServer) -> Tried:
    wait = counters.hit("mcp-trial", f"user:{user_id}", limit=TRIALS_PER_MINUTE, seconds=60)
    if wait is not None:
        raise TooMany("Too many trials. Please wait a moment.", retry_after_seconds=wait)
    if not _free_trials.acquire(blocking=False):
        raise TooMany("Too many servers are being tried. Please wait a moment.", retry_after_seconds=5)
    try:
        return async_to_sync(_tried)(mcp.as_used(row))
    finally:
        _free_trials.release()


async def _tried(server: mcp.Server) -> Tried:
    from copilot.tools.mcp_client import Connections
    from copilot.tools.mcp_connection import Unavailable

    try:
        listing = await Connections().try_once(server)
    except Unavailable as problem:
        return Tried(error=str(problem))
    return Tried(error="", tools=tuple(tool.listed() for tool in listing.tools))
