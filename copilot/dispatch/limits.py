"""Whether a user's account, and what it may spend, let a message in, a queued one start or a paused turn go on (B7)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from django.contrib.auth.models import User

from billing import errors as billing_errors
from billing import usage as billing_usage
from copilot import queries
from copilot.dispatch.telling import publish
from copilot.errors import Forbidden, TooMany
from copilot.events import LimitReached


def check_account(user_id: int) -> None:
    """For what was accepted earlier and goes on now: a new message is looked at by its own statement (A3.10)."""
    if not User.objects.filter(pk=user_id, is_active=True).exists():
        raise Forbidden("This account is not active.", code="account_inactive")


def check_limit(user_id: int) -> None:
    try:
        billing_usage.check(user_id)
    except billing_errors.LimitReached as reached:
        raise refused(reached) from reached


def refused(reached: billing_errors.LimitReached) -> TooMany:
    """What a door answers; billing has said all of it (B16.4)."""
    return TooMany(
        reached.message,
        code=reached.code,
        retry_after_seconds=reached.retry_after_seconds(datetime.now(UTC)),
        window=reached.window,
        resets_at=queries.instant(reached.resets_at),
        reason=reached.reason,
        reset_cost_cents=reached.reset_cost_cents,
        can_reset=reached.can_reset,
    )


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
