"""Background loops of long-lived processes: the reaper's sweep, and the watch that samples figures and alerts people.

No queue stands between a death and its takeover, or between a finding and the people who must know: each loop is a
thread of every process that could run it, and one of them leads. Workers of `maintenance` go first, then workers of
`turns`, then, for the watch only, web processes. The lead is a key in Redis that expires, so it needs no session of
Postgres (poolers in transaction mode have none); two leaders at once do no harm.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time

import structlog
from django.conf import settings
from django.db import Error, connection

from config.core.errors import ServiceUnavailable
from copilot.worker import heartbeat
from diagnostics import alerts, reaper, samples, snapshot

log = structlog.get_logger(__name__)

MAINTENANCE, TURNS, WEB = 0, 1, 2  # ranks: the lowest live one leads
STANDBY_SECONDS = 3.0
KEEP_LEAD_SECONDS = 1.0  # during a long sweep
MAX_SWEEP_SECONDS = 120.0
WATCH_INTERVAL_SECONDS = 15.0
WEB_START_DELAY_SECONDS = 60.0  # web processes are up before workers
WATCH_LEAD_SECONDS = 2.5 * WATCH_INTERVAL_SECONDS


class LeaderLoop(threading.Thread):
    """Try for the lead of a role repeatedly, and act while this process has it."""

    role = ""
    lead_seconds = heartbeat.LEADERSHIP_LIFETIME_SECONDS
    standby_seconds = STANDBY_SECONDS
    acting_seconds = STANDBY_SECONDS

    def __init__(self, rank: int) -> None:
        super().__init__(name=self.role, daemon=True)
        self._rank = rank
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run until stopped; a failed round does not end the loop."""
        leading = False
        while not self._stopping.wait(self.get_pause_seconds() if leading else self.standby_seconds):
            try:
                leading = self.take_lead()
                if leading:
                    self.run_once()
            except Exception:
                log.exception("loop_failed", role=self.role)
                connection.close()
        heartbeat.give_up_leadership(self.role, self._holder)
        connection.close()

    def stop(self) -> None:
        """Step down, so that another process leads at once."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=2)

    def get_pause_seconds(self) -> float:
        """Return the pause between two rounds of the leader."""
        return self.acting_seconds

    def take_lead(self) -> bool:
        return heartbeat.take_leadership(
            self.role, self._holder, rank=self._rank, life_seconds=self.lead_seconds
        )

    def run_once(self) -> None:
        raise NotImplementedError


class ReaperLoop(LeaderLoop):
    """Sweep every DIAG_SWEEP_SECONDS; while turns run, look for dead workers twice a second too."""

    role = "reaper"

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._swept_at = float("-inf")
        self._acting_since: float | None = None
        self._keeper = threading.Thread(target=self._keep_lead, name="reaper's lead", daemon=True)

    def start(self) -> None:
        super().start()
        self._keeper.start()

    def get_pause_seconds(self) -> float:
        return reaper.get_pause_seconds()

    def take_lead(self) -> bool:
        try:
            return super().take_lead()
        except ServiceUnavailable:
            return False  # without Redis no worker can be judged

    def run_once(self) -> None:
        self._acting_since = now = time.monotonic()
        try:
            if now - self._swept_at < settings.DIAG_SWEEP_SECONDS:
                reaper.run_probe()
            else:
                self._swept_at = now
                reaper.run_sweep()
        finally:
            self._acting_since = None

    def _keep_lead(self) -> None:
        """Keep the lead during a long sweep, but lose it if the sweep hangs."""
        while not self._stopping.wait(KEEP_LEAD_SECONDS):
            since = self._acting_since
            if since is not None and KEEP_LEAD_SECONDS < time.monotonic() - since < MAX_SWEEP_SECONDS:
                self.take_lead()


class WatchLoop(LeaderLoop):
    """Sample figures every minute, alert people about critical findings, and ping the outside monitor."""

    role = "watch"
    lead_seconds = WATCH_LEAD_SECONDS
    standby_seconds = WATCH_INTERVAL_SECONDS
    acting_seconds = WATCH_INTERVAL_SECONDS

    def take_lead(self) -> bool:
        try:
            return super().take_lead()
        except ServiceUnavailable:
            return True  # people must be alerted about Redis too; the rows of alerts prevent duplicates

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._found_before: frozenset[str] = frozenset()  # codes of the previous round
        self._begins_at = time.monotonic() + (WEB_START_DELAY_SECONDS if rank == WEB else 0.0)

    def run_once(self) -> None:
        if time.monotonic() >= self._begins_at:
            self._found_before = run_watch(self._found_before)


def run_watch(found_before: frozenset[str]) -> frozenset[str]:
    """Alert people about what was found twice in a row: while an installation starts, much is missing for a moment."""
    seen = snapshot.get_snapshot()
    found = alerts.find_critical_codes(seen)
    if alerts.has_recipients():
        alerts.send_alerts(seen, only=found & found_before)
    alerts.ping_heartbeat_url(seen)
    try:
        samples.record_samples(seen.summary)
    except Error:
        connection.close()
    heartbeat.record_work("watch")
    return found


_running_loops: list[LeaderLoop] = []


def start_loops(rank: int) -> None:
    if _running_loops:
        return
    _running_loops.append(WatchLoop(rank))
    if rank < WEB:
        _running_loops.append(ReaperLoop(rank))
    for loop in _running_loops:
        loop.start()


def stop_loops() -> None:
    while _running_loops:
        _running_loops.pop().stop()
