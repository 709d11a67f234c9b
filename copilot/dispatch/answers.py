"""What the doors are told of a message or a stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from copilot.live import lease


@dataclass(frozen=True, kw_only=True)
class Started:
    """In the conversation: a turn of its own began, or the running one had taken it already (A30.7)."""

    message_id: UUID
    turn_id: UUID
    run_id: str | None
    cursor: str
    state: Literal["started", "delivered"] = "started"
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Queued:
    message_id: UUID
    turn_id: UUID  # the turn it waits behind
    run_id: str | None
    position: int
    cursor: str
    capacity: int = lease.QUEUE_CAPACITY
    state: Literal["queued"] = "queued"
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    turn_id: UUID | None
    state: Literal["stopping", "idle"]
