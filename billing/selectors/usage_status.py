"""Read a user's usage and limits from Postgres: percentages for the user, amounts for billing and staff."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.contrib.auth import get_user_model
from django.utils import timezone

from billing import plans, policies, redis_counters
from billing.errors import CountersUnavailable, UnknownUser
from billing.models import Account, UsageRecord, UsageReset
from config.core.db import fetch_all


@dataclass(frozen=True, kw_only=True)
class WindowUsage:
    window: plans.LimitWindow
    used_microdollars: int
    limit_microdollars: int
    version: int = 0  # of its row; 0 when there is none

    @property
    def is_exhausted(self) -> bool:
        return plans.is_exhausted(self.used_microdollars, self.limit_microdollars)


@dataclass(frozen=True, kw_only=True)
class UsageStatus:
    """`account_id` is None until the user's first use."""

    user_id: int
    account_id: int | None
    entitlement: plans.Entitlement
    daily: WindowUsage
    weekly: WindowUsage
    balance_cents: int

    @property
    def tier(self) -> str:
        return self.entitlement.tier

    @property
    def windows(self) -> tuple[WindowUsage, WindowUsage]:
        return self.daily, self.weekly

    @property
    def exhausted_window(self) -> WindowUsage | None:
        """Return the exhausted window, the weekly one first because only its reset lets the user continue."""
        return next((meter for meter in (self.weekly, self.daily) if meter.is_exhausted), None)


# One index lookup for the account and one per window, in a single round trip.
_USAGE_STATUS_SQL = """
    SELECT account.user_id, account.id AS account_id, account.credit_balance_cents, account.tier,
           account.daily_limit_override_microdollars AS daily_override_microdollars,
           account.weekly_limit_override_microdollars AS weekly_override_microdollars, account.entitlement_version,
           coalesce(day.used_microdollars, 0) AS daily_used_microdollars, coalesce(day.version, 0) AS daily_version,
           coalesce(week.used_microdollars, 0) AS weekly_used_microdollars, coalesce(week.version, 0) AS weekly_version
    FROM billing_account AS account
    LEFT JOIN billing_usagewindow AS day
        ON day.account_id = account.id AND day.kind = 'DAY' AND day.starts_on = %s
    LEFT JOIN billing_usagewindow AS week
        ON week.account_id = account.id AND week.kind = 'WEEK' AND week.starts_on = %s
    WHERE account.user_id = ANY(%s)
"""


class _StatusRow(NamedTuple):
    user_id: int
    account_id: int
    credit_balance_cents: int
    tier: str
    daily_override_microdollars: int | None
    weekly_override_microdollars: int | None
    entitlement_version: int
    daily_used_microdollars: int
    daily_version: int
    weekly_used_microdollars: int
    weekly_version: int


def get_usage_status(user_id: int, now: datetime) -> UsageStatus:
    """Read the status in one query. A user without an account has used nothing."""
    for found in iterate_usage_statuses([user_id], now):
        return found
    free = plans.Entitlement()
    daily_limit, weekly_limit = policies.get_rules().get_limits_microdollars(free)
    return UsageStatus(
        user_id=user_id,
        account_id=None,
        entitlement=free,
        daily=WindowUsage(
            window=plans.get_day_window(now), used_microdollars=0, limit_microdollars=daily_limit
        ),
        weekly=WindowUsage(
            window=plans.get_week_window(now), used_microdollars=0, limit_microdollars=weekly_limit
        ),
        balance_cents=0,
    )


def iterate_usage_statuses(user_ids: Collection[int], now: datetime) -> Iterator[UsageStatus]:
    """Yield the statuses of users who have accounts, in no particular order, with one query for all."""
    day, week, rules = plans.get_day_window(now), plans.get_week_window(now), policies.get_rules()
    for row in fetch_all(_StatusRow, _USAGE_STATUS_SQL, [day.starts_on, week.starts_on, list(user_ids)]):
        entitlement = plans.Entitlement(
            tier=row.tier,
            daily_override_microdollars=row.daily_override_microdollars,
            weekly_override_microdollars=row.weekly_override_microdollars,
            version=row.entitlement_version,
        )
        daily_limit, weekly_limit = rules.get_limits_microdollars(entitlement)
        yield UsageStatus(
            user_id=row.user_id,
            account_id=row.account_id,
            entitlement=entitlement,
            daily=WindowUsage(
                window=day,
                used_microdollars=row.daily_used_microdollars,
                version=row.daily_version,
                limit_microdollars=daily_limit,
            ),
            weekly=WindowUsage(
                window=week,
                used_microdollars=row.weekly_used_microdollars,
                version=row.weekly_version,
                limit_microdollars=weekly_limit,
            ),
            balance_cents=row.credit_balance_cents,
        )


# --- Views for users (percentages) and staff (amounts) ---


@dataclass(frozen=True, kw_only=True)
class WindowView:
    percent_used: float
    resets_at: datetime


@dataclass(frozen=True, kw_only=True)
class UsageView:
    """A user's own usage: percentages and times, no amounts. None means no limit."""

    daily: WindowView | None
    weekly: WindowView | None
    tier: str
    reset_cost_cents: int
    resets_left_today: int


@dataclass(frozen=True, kw_only=True)
class StaffLimits:
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


def get_usage(user_id: int) -> UsageView:
    """Read usage from Postgres, so that it is right even if Redis is not."""
    now = timezone.now()
    return build_usage_view(get_usage_status(user_id, now), now)


def build_usage_view(status: UsageStatus, now: datetime) -> UsageView:
    return UsageView(
        daily=_build_window_view(status.daily),
        weekly=_build_window_view(status.weekly),
        tier=status.tier,
        reset_cost_cents=policies.get_rules().policy.reset_cost_cents,
        resets_left_today=count_resets_left(status.account_id, now),
    )


def count_resets_left(account_id: int | None, now: datetime) -> int:
    """Count the paid resets left this UTC day. Refunded and staff resets do not count."""
    most = policies.get_rules().policy.max_paid_resets_per_day
    if account_id is None:
        return most
    bought = UsageReset.objects.filter(
        account=account_id,
        day=plans.get_day_window(now).starts_on,
        kind=UsageReset.Kind.PAID,
        state=UsageReset.State.APPLIED,
    )
    return max(0, most - bought.count())


def find_reset_refusal(status: UsageStatus, now: datetime) -> str:
    """Return the error code that prevents buying a reset now, or "" if it can be bought."""
    price_cents = policies.get_rules().policy.reset_cost_cents
    daily, weekly = status.windows
    if not price_cents:
        return "reset_not_available"
    if daily.limit_microdollars == plans.UNLIMITED:
        return "no_daily_limit"
    if not daily.is_exhausted:
        return "not_over_limit"
    if plans.is_exhausted(weekly.used_microdollars - daily.limit_microdollars, weekly.limit_microdollars):
        return "weekly_limit_reached"
    if not count_resets_left(status.account_id, now):
        return "too_many_resets"
    return "insufficient_credits" if status.balance_cents < price_cents else ""


def find_user_id_by_email(email: str) -> int:
    found = get_user_model().objects.filter(email__iexact=email).values_list("pk", flat=True).first()
    if found is None:
        raise UnknownUser
    return int(found)


def get_staff_limits(user_id: int) -> StaffLimits:
    user = get_user_model().objects.filter(pk=user_id).first()
    if user is None:
        raise UnknownUser
    status = get_usage_status(user_id, timezone.now())
    granted = Account.objects.filter(user_id=user_id).values_list("granted_tier", flat=True).first()
    return StaffLimits(
        user=user_id,
        email=user.email,
        tier=status.tier,
        granted_tier=granted,
        daily_limit_microdollars=status.daily.limit_microdollars,
        daily_used_microdollars=status.daily.used_microdollars,
        weekly_limit_microdollars=status.weekly.limit_microdollars,
        weekly_used_microdollars=status.weekly.used_microdollars,
        daily_override_microdollars=status.entitlement.daily_override_microdollars,
        weekly_override_microdollars=status.entitlement.weekly_override_microdollars,
    )


def _build_window_view(meter: WindowUsage) -> WindowView | None:
    percent_used = plans.compute_percent_used(meter.used_microdollars, meter.limit_microdollars)
    if percent_used is None:
        return None
    return WindowView(percent_used=percent_used, resets_at=meter.window.resets_at)


# --- Recent calls and holds, for staff ---


@dataclass(frozen=True, kw_only=True)
class RecentCall:
    call_id: str
    turn_ref: str
    occurred_at: datetime
    provider: str
    model: str
    purpose: str
    cost_microdollars: int
    cost_source: str


def list_recent_calls(user_id: int, most: int = 20) -> list[RecentCall]:
    rows = UsageRecord.objects.filter(account__user=user_id).order_by("-occurred_at")[:most]
    return [
        RecentCall(
            call_id=str(row.call_id),
            turn_ref=row.turn_ref,
            occurred_at=row.occurred_at,
            provider=row.provider,
            model=row.model,
            purpose=row.purpose,
            cost_microdollars=row.cost_microdollars,
            cost_source=row.cost_source,
        )
        for row in rows
    ]


def list_open_holds(user_id: int) -> list[redis_counters.OpenHold] | None:
    """List what running turns hold, or None if Redis does not answer."""
    try:
        return redis_counters.read_open_holds(user_id)
    except CountersUnavailable:
        return None
