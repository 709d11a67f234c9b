"""Whether a user's account, and what it may spend, let a message in, a queued one start or a paused turn go on (B7)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from django.contrib.auth.models import User

from billing import errors as billing_errors
from billing import notices
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


def check_and_hold(user_id: int, turn_id: UUID) -> bool:
    """Check the limit and hold money for the turn that may open, in one round trip; False: only other turns' holds are in the way.

    A message that queues behind a running turn needs no hold, so that is no refusal yet.
    """
    try:
        billing_usage.admit(user_id, str(turn_id))
    except billing_errors.LimitReached as reached:
        if reached.reason == "held":
            return False
        raise refused(reached) from reached
    return True


def check_and_admit(user_id: int, hold: UUID | str) -> None:
    """Check the limit and hold money for what is about to begin; raises TooMany when too much is used or held."""
    try:
        billing_usage.admit(user_id, str(hold))
    except billing_errors.LimitReached as reached:
        raise refused(reached) from reached


def admit(user_id: int, turn_id: UUID) -> None:
    """A turn is about to open, and the check has just passed: where turns hold money, this one's is held (B7.1)."""
    try:
        billing_usage.admit(user_id, str(turn_id), checked=True)
    except billing_errors.LimitReached as reached:
        raise refused(reached) from reached


def let_go(user_id: int, hold: UUID | str) -> None:
    """A turn ended without a worker, or never opened: nothing is held for it."""
    billing_usage.settle(user_id, str(hold))


def may_go_on(session_id: UUID, owner_id: int, turn_id: UUID, waiting: int, *, again: bool) -> bool:
    """Whether the owner's limit lets queued messages start; if not, they stay and clients are told (B7.2).

    `again`: they were kept before, and whoever looks once a minute tells it once.
    """
    try:
        billing_usage.admit(owner_id, str(turn_id))
    except billing_errors.LimitReached as reached:
        _tell(session_id, owner_id, reached, waiting, again=again)
        return False
    return True


def _tell(
    session_id: UUID, owner_id: int, reached: billing_errors.LimitReached, waiting: int, *, again: bool
) -> None:
    told = LimitReached(
        window=reached.window,
        resets_at=queries.instant(reached.resets_at),
        queued=waiting,
        reset_cost_cents=reached.reset_cost_cents,
        can_reset=reached.can_reset,
    )
    news = notices.post(
        owner_id,
        "limit_reached",
        dedupe_key=f"limit:{reached.window}:{told.resets_at}",
        data={
            "window": reached.window,
            "resets_at": told.resets_at,
            "reason": reached.reason,
            "queued": waiting,
            "reset_cost_cents": reached.reset_cost_cents,
            "can_reset": reached.can_reset,
        },
    )
    if news or not again:
        publish(session_id, owner_id, [(told, None)])
