"""What Redis holds of sessions that are gone for good (S17)."""

from __future__ import annotations

from collections.abc import Sequence

from copilot.live import keys
from copilot.live.client import blocking


def wipe(session_ids: Sequence[str]) -> None:
    """One session at a time: its keys lie together, those of two may not."""
    for session_id in session_ids:
        blocking().unlink(
            keys.lease(session_id),
            keys.queue(session_id),
            keys.fence(session_id),
            keys.stop(session_id),
            keys.stopped_through(session_id),
            keys.log(session_id),
            keys.aside(session_id),
        )
