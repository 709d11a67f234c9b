"""Record usage of accounts, and read the records and the counters in Redis."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User

from billing import accounts, plans, pricing, redis_counters
from billing.models import Account, UsageWindow
from billing.usage import usage_records

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)  # a Wednesday


def make_usage_call(
    user: User | None, *, at: datetime = NOON, reported: str | None = "0.001", **fields: Any
) -> usage_records.UsageCall:
    plain: dict[str, Any] = {
        "call_id": uuid.uuid4(),
        "user_id": user and user.pk,
        "occurred_at": at,
        "provider": "acme",
        "model": "glow-1",
        "tokens": pricing.TokenCounts(input=1_000, output=500, cache_read=2_000),
        "reported": reported,
    }
    return usage_records.UsageCall(**plain | fields)


def read_windows(user: User, kind: str) -> dict[str, tuple[int, int]]:
    return {
        window.starts_on.isoformat(): (window.used_microdollars, window.version)
        for window in UsageWindow.objects.filter(account__user=user, kind=kind).order_by("starts_on")
    }


def record_past_usage(user: User | None, microdollars: float, *, at: datetime = NOON) -> None:
    usage_records.record_usage(make_usage_call(user, at=at, reported=f"{microdollars / 1_000_000:.6f}"))


def update_account(user: User, **fields: Any) -> None:
    Account.objects.filter(pk=accounts.get_or_create_account(user.pk).pk).update(**fields)


def record_usage(user: User | None, microdollars: float, *, at: datetime | None = None) -> None:
    usage_records.record_usage(
        make_usage_call(user, at=at or datetime.now(UTC), reported=f"{microdollars / 1_000_000:.6f}")
    )


def windows() -> tuple[plans.LimitWindow, plans.LimitWindow]:
    now = datetime.now(UTC)
    return plans.get_day_window(now), plans.get_week_window(now)


def read_cached_usage(user: User) -> redis_counters.CachedUsage:
    return redis_counters.read_cached_usage(user.pk, *windows())
