"""Test the connection to an MCP server on request.

A trial waits on the event loop and holds no thread, because a foreign server and its DNS decide how long they
take.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from config.core import rate_limits
from config.core.db import run_in_thread
from config.core.errors import TooManyRequests
from copilot.tools.mcp import services as mcp

MAX_TRIALS_PER_MINUTE = 10  # of one account, in all processes
MAX_CONCURRENT_PER_ACCOUNT = 2  # at once, in one process
MAX_CONCURRENT_TRIALS = 8  # in one process: each holds a connection, and an answer of up to 16 MB
TRIAL_TIMEOUT_SECONDS = 12.0  # 10 for connecting and listing, the rest for closing
TRIAL_RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    error: str
    tools: tuple[mcp.ListedTool, ...] = ()


async def try_server(user_id: int, owner_id: int | None, server_id: UUID) -> TrialResult:
    """Connect and list the tools for this user. A server without an owner belongs to everybody.

    Raises NotFound, and TooManyRequests when the account or this process runs too many trials.
    """
    with _running_trials.acquire_slot(user_id):
        server = await run_in_thread(_admit_trial, user_id, owner_id, server_id)
        return await _list_server_tools(server)


def _admit_trial(user_id: int, owner_id: int | None, server_id: UUID) -> mcp.McpServerConfig:
    row = mcp.get_own_server(owner_id, server_id)
    wait = rate_limits.count_request("mcp-trial", f"user:{user_id}", limit=MAX_TRIALS_PER_MINUTE, seconds=60)
    if wait is not None:
        raise TooManyRequests(
            "Too many connection tests. Try again in a moment.",
            code="too_many_trials",
            retry_after_seconds=wait,
        )
    return mcp.build_trial_config(row)


async def _list_server_tools(server: mcp.McpServerConfig) -> TrialResult:
    from copilot.tools.mcp.connection_pool import McpConnectionPool
    from copilot.tools.mcp.server_connection import TIMEOUT_MESSAGE, McpServerUnavailable

    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_SECONDS):
            listing = await McpConnectionPool().list_once(server)
    except McpServerUnavailable as problem:
        return TrialResult(error=str(problem))
    except TimeoutError:
        return TrialResult(error=TIMEOUT_MESSAGE)
    return TrialResult(error="", tools=tuple(tool.to_listed_tool() for tool in listing.tools))


class _RunningTrials:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_account: Counter[int] = Counter()

    @contextmanager
    def acquire_slot(self, user_id: int) -> Iterator[None]:
        with self._lock:
            if self._by_account[user_id] >= MAX_CONCURRENT_PER_ACCOUNT:
                raise _make_too_many_error(
                    "You're already testing other servers. Try again when those tests are done."
                )
            if self._by_account.total() >= MAX_CONCURRENT_TRIALS:
                raise _make_too_many_error(
                    "Too many servers are being tested right now. Try again in a moment."
                )
            self._by_account[user_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._by_account[user_id] -= 1
                if not self._by_account[user_id]:
                    del self._by_account[user_id]


def _make_too_many_error(message: str) -> TooManyRequests:
    return TooManyRequests(message, code="too_many_trials", retry_after_seconds=TRIAL_RETRY_AFTER_SECONDS)


_running_trials = _RunningTrials()
