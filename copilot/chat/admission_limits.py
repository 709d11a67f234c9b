"""Check account, plan and limits before a message is admitted or started, or a paused turn resumes."""

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
    """Refuse to continue earlier work of an inactive account.

    New messages are checked by their own statement.
    """
    if not User.objects.filter(pk=user_id, is_active=True).exists():
        raise Forbidden("This account is not active.", code="account_inactive")


def check_usage_limit(user_id: int) -> None:
    try:
        limit_checks.check_limits(user_id)
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def build_limit_refusal(reached: errors.LimitReached) -> TooManyRequests:
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
    """Check the limit and hold money for the turn that may open, in one round trip.

    Return False when only the holds of other turns are in the way. That is no refusal yet: a message that
    queues behind a running turn needs no hold.
    """
    try:
        limit_checks.check_limits_and_hold(user_id, str(turn_id))
    except errors.LimitReached as reached:
        if reached.reason == "held":
            return False
        raise build_limit_refusal(reached) from reached
    return True


def check_limit_and_place_hold(user_id: int, hold: UUID | str) -> None:
    try:
        limit_checks.check_limits_and_hold(user_id, str(hold))
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def place_hold(user_id: int, turn_id: UUID) -> None:
    try:
        limit_checks.check_limits_and_hold(user_id, str(turn_id), checked=True)
    except errors.LimitReached as reached:
        raise build_limit_refusal(reached) from reached


def release_hold(user_id: int, hold: UUID | str) -> None:
    limit_checks.release_turn_hold(user_id, str(hold))


def can_start_queued(
    session_id: UUID, owner_id: int, turn_id: UUID, queued_count: int, *, is_retry: bool
) -> bool:
    """Check whether the owner's limit lets queued messages start; if not, tell the clients why they wait.

    A retry tells them only when the notice is new: the sweep retries every minute.
    """
    try:
        limit_checks.check_limits_and_hold(owner_id, str(turn_id))
    except errors.LimitReached as reached:
        _publish_limit_reached(session_id, owner_id, reached, queued_count, is_retry=is_retry)
        return False
    return True


def _publish_limit_reached(
    session_id: UUID, owner_id: int, reached: errors.LimitReached, queued_count: int, *, is_retry: bool
) -> None:
    event = LimitReached(
        window=reached.window,
        resets_at=payloads.format_timestamp(reached.resets_at),
        queued=queued_count,
        reset_cost_cents=reached.reset_cost_cents,
        can_reset=reached.can_reset,
    )
    is_new_notice = notices.post_notice(
        owner_id,
        "limit_reached",
        dedupe_key=f"limit:{reached.window}:{event.resets_at}",
        data={
            "window": reached.window,
            "resets_at": event.resets_at,
            "reason": reached.reason,
            "queued": queued_count,
            "reset_cost_cents": reached.reset_cost_cents,
            "can_reset": reached.can_reset,
        },
    )
    if is_new_notice or not is_retry:
        publish_events(session_id, owner_id, [(event, None)])


# --- Plans -------------------------------------------------------------------------------------------


def apply_plan_to_message(command: SendMessage) -> SendMessage:
    """Check the message's channel, tier and mode, and fill in the mode where the plan decides it.

    A choice of the sender is kept or refused, never changed. Without a mode a turn thinks; on a plan
    without thinking it does not.
    """
    get_channel(command.origin, command.inbound_context.reply)
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
    catalogue_store.resolve_chain("", "")
    if plan_status.restricts_models():
        _check_plan_includes("tier", "standard", plan_status.get_plan_terms(user_id).model_tiers)


def _check_plan_includes(label: str, chosen: str, allowed: tuple[str, ...]) -> None:
    if allowed and chosen not in allowed:
        raise Forbidden(
            f"Your plan doesn't include the {label} {chosen!r}.",
            code="tier_not_allowed",
            hint=f"It includes: {', '.join(allowed)}.",
        )
