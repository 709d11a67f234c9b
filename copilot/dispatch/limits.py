"""Whether what a user may spend lets a message in, or a queued one go on (B7)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from billing import errors as billing_errors
from billing import usage as billing_usage
from copilot import queries
from copilot.dispatch.telling import publish
from copilot.errors import TooMany
from copilot.events import LimitReached


def check_limit(user_id: int) -> None:
    try:
        billing_usage.check(user_id)
    except billing_errors.LimitReached as reached:
        raise TooMany(
            reached.message,
            code=reached.code,
            retry_after_seconds=reached.retry_after_seconds(datetime.now(UTC)),
            window=reached.window,
            resets_at=queries.instant(reached.resets_at),
            reason=reached.reason,
            reset_cost_cents=0,
            can_reset=False,
        ) from reached


def may_go_on(session_id: UUID, owner_id: int, waiting: int) -> bool:
    """Whether the owner's limit lets queued messages start; if not, they stay and clients are told (B7)."""
    try:
        billing_usage.check(owner_id)
    except billing_errors.LimitReached as reached:
        told = LimitReached(
            window=reached.window, resets_at=queries.instant(reached.resets_at), queued=waiting
        )
        publish(session_id, owner_id, [(told, None)])
        return False
    return True
