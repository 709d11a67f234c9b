"""What a user may see of his own use and plan (percentages and times), and what staff see of it (amounts)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth import get_user_model
from django.utils import timezone

from billing import plans, policies
from billing.errors import UnknownUser
from billing.models import Account, TierPolicy, UsageReset
from billing.queries.standings import Meter, Standing, standing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a user's tier allows; an empty tuple allows everything, a ceiling of 0 is none (B6.10)."""

    tier: str
    model_tiers: tuple[str, ...]
    modes: tuple[str, ...]
    turn_ceiling_microdollars: int
    limit_binds_running_turns: bool


@dataclass(frozen=True, kw_only=True)
class WindowView:
    percent_used: float
    resets_at: datetime


@dataclass(frozen=True, kw_only=True)
class UsageView:
    """What anyone may see of his own use (B16.2): percentages and times, no amounts. None = no limit."""

    daily: WindowView | None
    weekly: WindowView | None
    tier: str
    reset_cost_cents: int
    resets_left_today: int


@dataclass(frozen=True, kw_only=True)
class PlanOffer:
    """One plan as its card shows it."""

    tier: str
    name: str
    monthly_cost_cents: int
    trial_days: int
    selectable: bool
    blurb: str


@dataclass(frozen=True, kw_only=True)
class StaffLimits:
    """Everything about somebody's limits, for staff alone (B16.2)."""

    user: int
    email: str
    tier: str
    granted_tier: str | None
    daily_limit_microdollars: int
    daily_used_microdollars: int
    weekly_limit_microdollars: int
    weekly_used_microdollars: int
    daily_override_microdollars: int | None
    weekly_override_microdollars: int | None


def usage(user_id: int) -> UsageView:
    """Read from the durable rows, so it is right whatever Redis does (B8.1)."""
    now = timezone.now()
    return usage_of(standing(user_id, now), now)


def usage_of(stands: Standing, now: datetime) -> UsageView:
    return UsageView(
        daily=_view(stands.daily),
        weekly=_view(stands.weekly),
        tier=stands.tier,
        reset_cost_cents=policies.rules().policy.reset_cost_cents,
        resets_left_today=resets_left(stands.account_id, now),
    )


def resets_left(account_id: int | None, now: datetime) -> int:
    """Paid ones of this UTC day; those that were refunded and those that staff gave do not count."""
    most = policies.rules().policy.max_paid_resets_per_day
    if account_id is None:
        return most
    bought = UsageReset.objects.filter(
        account=account_id,
        day=plans.day_of(now).starts_on,
        kind=UsageReset.Kind.PAID,
        state=UsageReset.State.APPLIED,
    )
    return max(0, most - bought.count())


def reset_refusal(stands: Standing, now: datetime) -> str:
    """Why a reset cannot be bought now, as the wire names it; empty when it can (B8.2)."""
    price_cents = policies.rules().policy.reset_cost_cents
    daily, weekly = stands.meters
    if not price_cents:
        return "reset_not_available"
    if daily.limit_microdollars == plans.UNLIMITED:
        return "no_daily_limit"
    if not daily.exhausted:
        return "not_over_limit"
    if plans.is_exhausted(weekly.used_microdollars - daily.limit_microdollars, weekly.limit_microdollars):
        return "weekly_limit_reached"
    if not resets_left(stands.account_id, now):
        return "too_many_resets"
    return "insufficient_credits" if stands.balance_cents < price_cents else ""


def restricts_models() -> bool:
    """Whether any plan leaves something out: if none does, nobody's plan needs to be looked up."""
    return any(terms.model_tiers or terms.modes for terms in policies.rules().terms.values())


def plan(user_id: int) -> Plan:
    tier = Account.objects.filter(user_id=user_id).values_list("tier", flat=True).first() or "FREE"
    known = policies.rules()
    terms = known.of(tier)
    return Plan(
        tier=tier,
        model_tiers=terms.model_tiers,
        modes=terms.modes,
        turn_ceiling_microdollars=known.policy.turn_ceiling_microdollars,
        limit_binds_running_turns=known.policy.limit_binds_running_turns,
    )


def plan_offers() -> list[PlanOffer]:
    """Every tier in its order; what it multiplies is nobody's business (B1.5)."""
    rows = {row.tier: row for row in TierPolicy.objects.all()}
    return [
        PlanOffer(
            tier=tier,
            name=tier.title(),
            monthly_cost_cents=rows[tier].monthly_cents,
            trial_days=rows[tier].trial_days,
            selectable=rows[tier].selectable,
            blurb=rows[tier].blurb,
        )
        for tier in plans.TIERS
        if tier in rows
    ]


def user_by_email(email: str) -> int:
    found = get_user_model().objects.filter(email__iexact=email).values_list("pk", flat=True).first()
    if found is None:
        raise UnknownUser
    return int(found)


def staff_limits(user_id: int) -> StaffLimits:
    user = get_user_model().objects.filter(pk=user_id).first()
    if user is None:
        raise UnknownUser
    stands = standing(user_id, timezone.now())
    granted = Account.objects.filter(user_id=user_id).values_list("granted_tier", flat=True).first()
    return StaffLimits(
        user=user_id,
        email=user.email,
        tier=stands.tier,
        granted_tier=granted,
        daily_limit_microdollars=stands.daily.limit_microdollars,
        daily_used_microdollars=stands.daily.used_microdollars,
        weekly_limit_microdollars=stands.weekly.limit_microdollars,
        weekly_used_microdollars=stands.weekly.used_microdollars,
        daily_override_microdollars=stands.entitlement.daily_override_microdollars,
        weekly_override_microdollars=stands.entitlement.weekly_override_microdollars,
    )


def _view(meter: Meter) -> WindowView | None:
    percent_used = plans.percent_used(meter.used_microdollars, meter.limit_microdollars)
    if percent_used is None:
        return None
    return WindowView(percent_used=percent_used, resets_at=meter.window.resets_at)
