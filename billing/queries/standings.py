"""Where a user stands: the use and the limits of his two windows, from the rows. For billing and staff only (B1.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from billing import plans, policies


@dataclass(frozen=True, kw_only=True)
class Meter:
    """One window of one user: what is used, of what limit."""

    window: plans.Window
    used_microdollars: int
    limit_microdollars: int
    version: int = 0  # of its row; 0 when there is none

    @property
    def exhausted(self) -> bool:
        return plans.is_exhausted(self.used_microdollars, self.limit_microdollars)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`account_id` is None as long as the user has caused nothing."""

    user_id: int
    account_id: int | None
    entitlement: plans.Entitlement
    daily: Meter
    weekly: Meter
    balance_cents: int

    @property
    def tier(self) -> str:
        return self.entitlement.tier

    @property
    def meters(self) -> tuple[Meter, Meter]:
        return self.daily, self.weekly

    @property
    def exhausted(self) -> Meter | None:
        """The weekly window first, for only its reset lets the user go on (B6.4)."""
        return next((meter for meter in (self.weekly, self.daily) if meter.exhausted), None)


# One look-up by the unique user, two by the unique window: one round trip decides.
_STANDING = """
    SELECT account.user_id, account.id, account.credit_balance_cents,
           account.tier, account.daily_limit_override_microdollars,
           account.weekly_limit_override_microdollars, account.entitlement_version,
           coalesce(day.used_microdollars, 0), coalesce(day.version, 0),
           coalesce(week.used_microdollars, 0), coalesce(week.version, 0)
    FROM billing_account AS account
    LEFT JOIN billing_usagewindow AS day
        ON day.account_id = account.id AND day.kind = 'DAY' AND day.starts_on = %s
    LEFT JOIN billing_usagewindow AS week
        ON week.account_id = account.id AND week.kind = 'WEEK' AND week.starts_on = %s
    WHERE account.user_id = ANY(%s)
"""


def standing(user_id: int, now: datetime) -> Standing:
    """In one statement, once policy and tiers are known; somebody without an account has used nothing (B2.5)."""
    for found in standings([user_id], now):
        return found
    free = plans.Entitlement()
    daily_limit, weekly_limit = policies.rules().limits_microdollars(free)
    return Standing(
        user_id=user_id,
        account_id=None,
        entitlement=free,
        daily=Meter(window=plans.day_of(now), used_microdollars=0, limit_microdollars=daily_limit),
        weekly=Meter(window=plans.week_of(now), used_microdollars=0, limit_microdollars=weekly_limit),
        balance_cents=0,
    )


def standings(user_ids: Collection[int], now: datetime) -> Iterator[Standing]:
    """Of those who have accounts, in no particular order; in one statement however many they are."""
    day, week, known = plans.day_of(now), plans.week_of(now), policies.rules()
    with connection.cursor() as cursor:
        cursor.execute(_STANDING, [day.starts_on, week.starts_on, list(user_ids)])
        rows = cursor.fetchall()
    for user_id, account_id, balance, tier, daily, weekly, version, *use in rows:
        entitlement = plans.Entitlement(
            tier=tier,
            daily_override_microdollars=daily,
            weekly_override_microdollars=weekly,
            version=version,
        )
        daily_limit, weekly_limit = known.limits_microdollars(entitlement)
        yield Standing(
            user_id=user_id,
            account_id=account_id,
            entitlement=entitlement,
            daily=Meter(window=day, used_microdollars=use[0], version=use[1], limit_microdollars=daily_limit),
            weekly=Meter(
                window=week, used_microdollars=use[2], version=use[3], limit_microdollars=weekly_limit
            ),
            balance_cents=balance,
        )
