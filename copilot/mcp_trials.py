"""Tries an MCP server for somebody who wants to know now, and remembers what came of it (A28)."""

from __future__ import annotations

from dataclasses import dataclass

from asgiref.sync import async_to_sync

from copilot import mcp
from copilot.errors import TooMany
from copilot.live import counters
from copilot.models import McpServer

TRIALS_PER_MINUTE = 10  # each may hold a thread of the web process for as long as connecting may take


@dataclass(frozen=True, kw_only=True)
class Tried:
    error: str
    tools: tuple[mcp.Listed, ...] = ()


def run(user_id: int, row: McpServer) -> Tried:
    wait = counters.hit("mcp-trial", f"user:{user_id}", limit=TRIALS_PER_MINUTE, seconds=60)
    if wait is not None:
        raise TooMany("Too many trials. Please wait a moment.", retry_after_seconds=wait)
    return async_to_sync(_tried)(mcp.as_used(row))


async def _tried(server: mcp.Server) -> Tried:
    from copilot.tools.mcp_client import Connections
    from copilot.tools.mcp_connection import Unavailable

    try:
        listing = await Connections().try_once(server)
    except Unavailable as problem:
        return Tried(error=str(problem))
    return Tried(error="", tools=tuple(tool.listed() for tool in listing.tools))
