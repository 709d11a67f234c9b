"""Try an MCP server for somebody who wants to know now, and remember what came of it.

A trial waits on the event loop and holds no thread: a foreign server, and whoever owns its name, decide how long they take.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from copilot import mcp
from copilot.bridge import in_thread
from copilot.errors import TooMany
from copilot.live import counters

TRIALS_PER_MINUTE = 10  # of one account, in all processes
TRIALS_PER_ACCOUNT = 2  # at once, in one process
TRIALS_AT_ONCE = 8  # in one process: each keeps a connection, and an answer of up to 16 MB
TRIAL_SECONDS = 12.0  # connecting and listing have 10 of them; saying goodbye comes after
RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Tried:
    error: str
    tools: tuple[mcp.Listed, ...] = ()


async def try_server(user_id: int, owner_id: int | None, server_id: UUID) -> Tried:
    """Connect and list the tools, for this user; the server is the owner's, or with no owner everybody's.

    Raises NotFound, and TooMany when the account or this process has as many trials under way as it may have.
    """
    with _running.slot_of(user_id):
        server = await in_thread(_admit, user_id, owner_id, server_id)
        return await _connect(server)


def _admit(user_id: int, owner_id: int | None, server_id: UUID) -> mcp.Server:
    row = mcp.own(owner_id, server_id)
    wait = counters.hit("mcp-trial", f"user:{user_id}", limit=TRIALS_PER_MINUTE, seconds=60)
    if wait is not None:
        raise TooMany(
            "Too many trials. Please wait a moment.", code="too_many_trials", retry_after_seconds=wait
        )
    return mcp.as_used(row)


async def _connect(server: mcp.Server) -> Tried:
    from copilot.tools.mcp_client import Connections
    from copilot.tools.mcp_connection import TOO_SLOW, Unavailable

    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            listing = await Connections().try_once(server)
    except Unavailable as problem:
        return Tried(error=str(problem))
    except TimeoutError:
        return Tried(error=TOO_SLOW)
    return Tried(error="", tools=tuple(tool.listed() for tool in listing.tools))


class _RunningTrials:
    """Count the trials that run in this process, by account."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_account: Counter[int] = Counter()

    @contextmanager
    def slot_of(self, user_id: int) -> Iterator[None]:
        with self._lock:
            if self._by_account[user_id] >= TRIALS_PER_ACCOUNT:
                raise _too_many(
                    "You are testing other servers already. Try again when those tests have ended."
                )
            if self._by_account.total() >= TRIALS_AT_ONCE:
                raise _too_many("Too many servers are being tested right now. Please try again in a moment.")
            self._by_account[user_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._by_account[user_id] -= 1
                if not self._by_account[user_id]:
                    del self._by_account[user_id]


def _too_many(message: str) -> TooMany:
    return TooMany(message, code="too_many_trials", retry_after_seconds=RETRY_AFTER_SECONDS)


_running = _RunningTrials()
