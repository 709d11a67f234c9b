"""One run of a turn in this process: what its beginning, its endings and its interruptions share."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from copilot import usage
from copilot.agent.approving import Approved
from copilot.agent.loop import Loop
from copilot.agent.recorder import Recorder
from copilot.agent.services import Services
from copilot.turns import Claimed

log = logging.getLogger(__name__)

Interruption = Literal["stop", "worker_shutdown", "outage", "lost", "idle_timeout", "time_limit"]


class Run:
    """A takeover or a hand-over makes another; so does what goes on after a pause."""

    def __init__(self, turn: Claimed, services: Services) -> None:
        self.turn = turn
        self.services = services
        self.outbox = services.publisher.open(
            session_id=str(turn.session_id), turn_id=str(turn.turn_id), user_id=turn.user_id, fence=turn.fence
        )
        self.recorder = Recorder(turn, services, self.outbox, model="")
        self.approved = Approved(turn)
        self.earlier = usage.Earlier()  # runs of the turn
        self.loop: Loop | None = None
        self.shape = ""  # of its requests' beginning (A15.9)
        self.interruption: Interruption | None = "stop" if turn.stopped else None
        self.interrupted_at: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.deciding = False  # whether it ends is being decided in Postgres: nothing may cut that short
        self.over = False
        self.closed = False  # the turn ended or paused here: nothing is held for it any more (B6.7)

    def close(self) -> None:
        self.over = self.closed = True

    def leave(self) -> None:
        log.warning("turn %s belongs to another worker now", self.turn.turn_id)
        self.recorder.abandon()
