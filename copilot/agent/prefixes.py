"""Where a request cannot begin with the one before it, and why: prompts that break are paid for anew (A15.9)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal
from uuid import UUID

from copilot import metrics
from copilot.events import ContextUse
from copilot.providers.base import ToolSpecification

log = logging.getLogger(__name__)

Reason = Literal["compaction", "edit", "healing", "model_switch", "shape", "undo"]


def broken(reason: Reason, session_id: UUID) -> None:
    metrics.prefix_breaks.labels(reason).inc()
    log.info("the requests of session %s begin anew: %s", session_id, reason)


def shape_of(suffix: str, tools: Iterable[ToolSpecification]) -> str:
    """A digest of what begins every request of a turn, besides the text that all share."""
    digest = blake2b(suffix.encode(), digest_size=8)
    for tool in tools:
        digest.update(f"\0{tool.name}\0{tool.description}".encode())
    return digest.hexdigest()


def compare(session_id: UUID, before: ContextUse, *, model: str, shape: str) -> None:
    """The session's last turn, as it left the window, and this one."""
    if before.model and before.model != model:
        broken("model_switch", session_id)
    elif before.shape and before.shape != shape:
        broken("shape", session_id)
