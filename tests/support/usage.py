"""Record usage of accounts, and read the records and the counters in Redis."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from billing import accounts, plans, pricing, redis_counters
from billing.models import Account, UsageWindow
from billing.usage import usage_records

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)  # a Wednesday


def make_usage_call(user, *, at=NOON, reported="0.001", **fields):
    plain = {
        "call_id": uuid.uuid4(),
        "user_id": user and user.pk,
        "occurred_at": at,
        "provider": "acme",
        "model": "glow-1",
        "tokens": pricing.TokenCounts(input=1_000, output=500, cache_read=2_000),
        "reported": reported,
    }
    return usage_records.UsageCall(**plain | fields)


def read_windows(user, kind):
    return {
        window.starts_on.isoformat(): (window.used_microdollars, window.version)
        for window in UsageWindow.objects.filter(account__user=user, kind=kind).order_by("starts_on")
    }


def record_past_usage(user, microdollars, *, at=NOON):
    usage_records.record_usage(make_usage_call(user, at=at, reported=f"{microdollars / 1_000_000:.6f}"))


def update_account(user, **fields):
    Account.objects.filter(pk=accounts.get_or_create_account(user.pk).pk).update(**fields)


def record_usage(user, microdollars, *, at=None):
    usage_records.record_usage(
        make_usage_call(user, at=at or datetime.now(UTC), reported=f"{microdollars / 1_000_000:.6f}")
    )


def windows():
    now = datetime.now(UTC)
    return plans.get_day_window(now), plans.get_week_window(now)


def read_cached_usage(user):
    return redis_counters.read_cached_usage(user.pk, *windows())
