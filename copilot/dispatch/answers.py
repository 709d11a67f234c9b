"""What the doors are told of a message or a stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from copilot.live import lease


@dataclass(frozen=True, kw_only=True)
class Started:
    message_id: UUID
    turn_id: UUID
    run_id: str | None
    cursor: str
    ignored_attachments: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Queued:
    message_id: UUID
    turn_id: UUID  # the turn it waits behind
    run_id: str | None
    position: int
    cursor: str
    capacity: int = lease.QUEUE_CAPACITY
    ignored_attachments: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    turn_id: UUID | None
    state: Literal["stopping", "idle"]
