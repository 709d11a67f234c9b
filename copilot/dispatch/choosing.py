"""Whether a message's channel, tier and mode exist, and its sender's plan includes them (A4.2, A31.2)."""

from __future__ import annotations

from dataclasses import replace

from billing import queries as billing
from copilot import offering
from copilot.commands import SendMessage
from copilot.context import channel_of
from copilot.errors import Forbidden


def choose(command: SendMessage) -> SendMessage:
    """The message as it may run. What was chosen is refused or kept, never changed; what was not may be filled in.

    Without a mode a turn thinks; on a plan that includes no thinking, it does not.
    """
    channel_of(command.origin, command.arrival.reply)
    offering.resolve(command.tier, command.mode)
    if not billing.restricts_models():
        return command
    plan = billing.plan(command.user_id)
    _check("tier", command.tier or "standard", plan.model_tiers)
    if command.mode:
        _check("mode", command.mode, plan.modes)
    elif plan.modes and "deep" not in plan.modes:
        return replace(command, mode=plan.modes[0])
    return command


def check_standard(user_id: int) -> None:
    """The same for what the standard tier answers, whatever its sender has chosen elsewhere (A30.3)."""
    offering.resolve("", "")
    if billing.restricts_models():
        _check("tier", "standard", billing.plan(user_id).model_tiers)


def _check(what: str, chosen: str, allowed: tuple[str, ...]) -> None:
    if allowed and chosen not in allowed:
        raise Forbidden(
            f"Your plan does not include the {what} {chosen!r}.",
            code="tier_not_allowed",
            hint=f"It includes: {', '.join(allowed)}.",
        )
