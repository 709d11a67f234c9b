"""Whether a user's account, and what it may spend, let a message in, a queued one start or a paused turn go on (B7)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from django.contrib.auth.models import User

from billing import errors, notices
from billing.selectors import plan_status
from billing.usage import limit_checks
from config.core.errors import Forbidden, TooManyRequests
from copilot.chat.announcements import publish_events
from copilot.chat.commands import SendMessage
from copilot.chat.turn_context import get_channel
from copilot.providers import catalogue_store
from copilot.realtime import payloads
from copilot.realtime.events import LimitReached


def check_account_is_active(user_id: int) -> None:
    """For what was accepted earlier and goes on now: a new message is looked at by its own statement (A3.10)."""
    if not User.objects.filter(pk=user_id, is_active=True).exists():
        raise Forbidden("This account is not active.", code="account_inactive")


def check_usage_limit(user_id: int) -> None:
    try:
        limit_checks.check_limits(user_id)
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def build_limit_refusal(reached: errors.LimitReached) -> TooManyRequests:
    """What a door answers; billing has said all of it (B16.4)."""
    return TooManyRequests(
        reached.message,
        code=reached.code,
        retry_after_seconds=reached.retry_after_seconds(datetime.now(UTC)),
        window=reached.window,
        resets_at=payloads.format_timestamp(reached.resets_at),
        reason=reached.reason,
        reset_cost_cents=reached.reset_cost_cents,
        can_reset=reached.can_reset,
    )


def try_place_hold(user_id: int, turn_id: UUID) -> bool:
    """Check the limit and hold money for the turn that may open, in one round trip; False: only other turns' holds are in the way.

    A message that queues behind a running turn needs no hold, so that is no refusal yet.
    """
    try:
        limit_checks.check_limits_and_hold(user_id, str(turn_id))
    except errors.LimitReached as reached:
        if reached.reason == "held":
            return False
        raise build_limit_refusal(reached) from reached
    return True


def check_limit_and_place_hold(user_id: int, hold: UUID | str) -> None:
    """Check the limit and hold money for what is about to begin; raises TooMany when too much is used or held."""
    try:
        limit_checks.check_limits_and_hold(user_id, str(hold))
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def place_hold(user_id: int, turn_id: UUID) -> None:
    """A turn is about to open, and the check has just passed: where turns hold money, this one's is held (B7.1)."""
    try:
        limit_checks.check_limits_and_hold(user_id, str(turn_id), checked=True)
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def release_hold(user_id: int, hold: UUID | str) -> None:
    """A turn ended without a worker, or never opened: nothing is held for it."""
    limit_checks.release_turn_hold(user_id, str(hold))


def can_start_queued(session_id: UUID, owner_id: int, turn_id: UUID, waiting: int, *, again: bool) -> bool:
    """Whether the owner's limit lets queued messages start; if not, they stay and clients are told (B7.2).

    `again`: they were kept before, and whoever looks once a minute tells it once.
    """
    try:
        limit_checks.check_limits_and_hold(owner_id, str(turn_id))
    except errors.LimitReached as reached:
        _publish_limit_reached(session_id, owner_id, reached, waiting, again=again)
        return False
    return True


def _publish_limit_reached(
    session_id: UUID, owner_id: int, reached: errors.LimitReached, waiting: int, *, again: bool
) -> None:
    told = LimitReached(
        window=reached.window,
        resets_at=payloads.format_timestamp(reached.resets_at),
        queued=waiting,
        reset_cost_cents=reached.reset_cost_cents,
        can_reset=reached.can_reset,
    )
    news = notices.post_notice(
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
        publish_events(session_id, owner_id, [(told, None)])


# MERGED dispatch.choosing: Whether a message's channel, tier and mode exist, and its sender's plan includes them (A4.2, A31.2).


def apply_plan_to_message(command: SendMessage) -> SendMessage:
    """The message as it may run. What was chosen is refused or kept, never changed; what was not may be filled in.

    Without a mode a turn thinks; on a plan that includes no thinking, it does not.
    """
    get_channel(command.origin, command.arrival.reply)
    catalogue_store.resolve_chain(command.tier, command.mode)
    if not plan_status.restricts_models():
        return command
    plan = plan_status.get_plan_terms(command.user_id)
    _check_plan_includes("tier", command.tier or "standard", plan.model_tiers)
    if command.mode:
        _check_plan_includes("mode", command.mode, plan.modes)
    elif plan.modes and "deep" not in plan.modes:
        return replace(command, mode=plan.modes[0])
    return command


def check_standard_tier_allowed(user_id: int) -> None:
    """The same for what the standard tier answers, whatever its sender has chosen elsewhere (A30.3)."""
    catalogue_store.resolve_chain("", "")
    if plan_status.restricts_models():
        _check_plan_includes("tier", "standard", plan_status.get_plan_terms(user_id).model_tiers)


def _check_plan_includes(what: str, chosen: str, allowed: tuple[str, ...]) -> None:
    if allowed and chosen not in allowed:
        raise Forbidden(
            f"Your plan does not include the {what} {chosen!r}.",
            code="tier_not_allowed",
            hint=f"It includes: {', '.join(allowed)}.",
        )
