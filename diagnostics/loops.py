"""Background loops of long-lived processes: the reaper's sweep, and the watch that samples figures and alerts people.

No queue stands between a death and its takeover, or between a finding and the people who must hear of it: each loop is
a thread of every process that could run it, and one of them leads. Workers of `maintenance` go first, then workers of
`turns`, then, for the watch alone, web processes. The lead is a key in Redis that expires, so it needs no session of
Postgres (poolers in transaction mode have none); two leaders at once do no harm.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time

from django.conf import settings
from django.db import Error, connection

from copilot import workers
from copilot.errors import Unavailable
from diagnostics import alerts, samples, snapshot, tasks

log = logging.getLogger(__name__)

MAINTENANCE, TURNS, WEB = 0, 1, 2  # ranks: the lowest that lives leads
STANDBY_SECONDS = 1.0
LONGEST_SWEEP_SECONDS = 120.0
WATCH_SECONDS = 15.0
WEB_WAITS_SECONDS = 60.0  # a web process is there first, and workers take their time
WATCH_LEAD_SECONDS = 2.5 * WATCH_SECONDS


class Loop(threading.Thread):
    """Try for the lead of a role again and again, and act while this process has it."""

    role = ""
    lead_seconds = workers.LEAD_SECONDS
    standby_seconds = STANDBY_SECONDS
    acting_seconds = STANDBY_SECONDS

    def __init__(self, rank: int) -> None:
        super().__init__(name=self.role, daemon=True)
        self._rank = rank
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._over = threading.Event()

    def run(self) -> None:
        """For ever: whatever one round meets, the next one comes."""
        leading = False
        while not self._over.wait(self.acting_seconds if leading else self.standby_seconds):
            try:
                leading = self.take_lead()
                if leading:
                    self.act()
            except Exception:
                log.exception("loop_failed: the %s loop failed, and goes on", self.role)
                connection.close()
        workers.step_down(self.role, self._holder)
        connection.close()

    def stop(self) -> None:
        """Step down, so that another process leads at once."""
        self._over.set()
        if self.is_alive():
            self.join(timeout=2)

    def take_lead(self) -> bool:
        return workers.take_lead(self.role, self._holder, rank=self._rank, life_seconds=self.lead_seconds)

    def act(self) -> None:
        raise NotImplementedError


class ReaperLoop(Loop):
    """Look for dead workers twice a second, and sweep for everything else every DIAG_SWEEP_SECONDS."""

    role = "reaper"
    acting_seconds = tasks.PROBE_SECONDS

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._swept_at = float("-inf")
        self._acting_since: float | None = None
        self._keeper = threading.Thread(target=self._keep_lead, name="reaper's lead", daemon=True)

    def start(self) -> None:
        super().start()
        self._keeper.start()

    def take_lead(self) -> bool:
        try:
            return super().take_lead()
        except Unavailable:
            return False  # without Redis nobody can be judged

    def act(self) -> None:
        self._acting_since = now = time.monotonic()
        try:
            if now - self._swept_at < settings.DIAG_SWEEP_SECONDS:
                tasks.probe_once()
            else:
                self._swept_at = now
                tasks.tick()
        finally:
            self._acting_since = None

    def _keep_lead(self) -> None:
        """A sweep that has much to do keeps the lead; one that hangs loses it."""
        while not self._over.wait(STANDBY_SECONDS):
            since = self._acting_since
            if since is not None and STANDBY_SECONDS < time.monotonic() - since < LONGEST_SWEEP_SECONDS:
                self.take_lead()


class WatchLoop(Loop):
    """Record the figures of every minute, tell people of critical findings, and show the outside that all is well."""

    role = "watch"
    lead_seconds = WATCH_LEAD_SECONDS
    standby_seconds = WATCH_SECONDS
    acting_seconds = WATCH_SECONDS

    def take_lead(self) -> bool:
        try:
            return super().take_lead()
        except Unavailable:
            return True  # Redis itself must be told of; the rows of alerts keep several processes from telling twice

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._found: frozenset[str] = frozenset()  # what the look before found
        self._begins_at = time.monotonic() + (WEB_WAITS_SECONDS if rank == WEB else 0.0)

    def act(self) -> None:
        if time.monotonic() >= self._begins_at:
            self._found = watch_once(self._found)


def watch_once(found_before: frozenset[str]) -> frozenset[str]:
    """Tell people of what was found before and still is: while an installation starts, much is missing for a moment."""
    seen = snapshot.take()
    found = alerts.critical_codes(seen)
    if alerts.is_wanted():
        alerts.tell(seen, only=found & found_before)
    alerts.call_heartbeat_url(seen)
    try:
        samples.record(seen.summary)
    except Error:
        connection.close()
    workers.note_work("watch")
    return found


_running: list[Loop] = []


def start(rank: int) -> None:
    """Start this process's loops, once."""
    if _running:
        return
    _running.append(WatchLoop(rank))
    if rank < WEB:
        _running.append(ReaperLoop(rank))
    for loop in _running:
        loop.start()


def stop() -> None:
    while _running:
        _running.pop().stop()
