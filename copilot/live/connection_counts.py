"""Count open connections per account and per address over all web processes, by counts that die with their process.

Each process has a field of its own in every count and a key that says it lives. One that was killed is not counted from the
moment its key runs out. What this process holds open it also counts in memory: its limits hold without Redis, and counts
that Redis lost are written again.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter

from copilot.live import keys
from copilot.live.client import RedisDown, blocking, script

log = logging.getLogger(__name__)

LIFE_SECONDS = 20  # of a killed process's connections in the counts
RENEW_SECONDS = 5.0
COUNT_SECONDS = 3_600
REWRITE_SECONDS = 900.0  # well before a count runs out that nobody has changed since

ACCOUNT, ADDRESS = 1, 2


class ConnectionCounts:
    """The counts of one process. Safe to call from any thread."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._renew_at = self._rewrite_at = 0.0

    def open(self, account: str, address: str, *, account_limit: int, address_limit: int) -> int | None:
        """Count a connection; ACCOUNT or ADDRESS when that one is full. A Redis that is away keeps nobody out."""
        with self._lock:
            for name, limit, which in ((account, account_limit, ACCOUNT), (address, address_limit, ADDRESS)):
                if self._held[name] >= limit:
                    return which
            self._held[account] += 1
            self._held[address] += 1
        try:
            full = script("open_connection")(
                keys=[account, address, keys.web_process(self.process)],
                args=[
                    self.process,
                    keys.web_process(""),
                    account_limit,
                    address_limit,
                    LIFE_SECONDS,
                    COUNT_SECONDS,
                ],
            )
        except RedisDown:
            log.warning("connection_count_unavailable")
            self._rewrite_at = 0.0
            return None
        if full:
            self.forget(account, address)
        return full or None

    def forget(self, *names: str) -> None:
        """Take a connection out of this process's memory."""
        with self._lock:
            for name in names:
                self._held[name] -= 1
                if self._held[name] <= 0:
                    del self._held[name]

    def close(self, names: list[str]) -> None:
        """Take connections out of the counts that others see: one round trip for all that were closed meanwhile."""
        try:
            script("close_connections")(keys=names, args=[self.process])
        except RedisDown:
            self._rewrite_at = 0.0
            raise

    def renew(self) -> None:
        """Say that this process lives, at most every few seconds; write all counts again if Redis forgot it or will soon."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        known = blocking().set(keys.web_process(self.process), "1", ex=LIFE_SECONDS, get=True)
        if known is None or now >= self._rewrite_at:
            self._rewrite()
            self._rewrite_at = now + REWRITE_SECONDS
        self._renew_at = now + RENEW_SECONDS

    def _rewrite(self) -> None:
        with self._lock:
            held = dict(self._held)
        with blocking().pipeline(transaction=False) as pipe:
            for name, count in held.items():
                pipe.hset(name, self.process, str(count))
                pipe.expire(name, COUNT_SECONDS)
            pipe.execute()


COUNTS = ConnectionCounts()
