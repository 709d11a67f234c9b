"""What a subscription entitles to, by what Stripe says of it and what the clock says: pure functions (B11.3)."""

from __future__ import annotations

from datetime import datetime, timedelta


def grace_of(status: str, known: datetime | None, *, now: datetime, days: int) -> datetime | None:
    """Only an unpaid renewal has one; it begins when it is first seen and is never extended (B15.1)."""
    if status != "past_due":
        return None
    return known or now + timedelta(days=days)


def entitles(status: str, grace_until: datetime | None, *, now: datetime) -> bool:
    if status == "past_due":
        return grace_until is not None and now < grace_until
    return status in ("active", "trialing")
