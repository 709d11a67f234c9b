"""Reads of billing: standings, public views, credits and statements; never writes."""

from billing.policies import forget as forget_policy
from billing.policies import prices, rules
from billing.queries.credits import (
    Balance,
    Credits,
    Entry,
    Expiring,
    Filters,
    Statement,
    balance,
    credits,  # noqa: A004 - the product's own word
    expiring,
    statement,
    stream_entries,
)
from billing.queries.standings import Meter, Standing, standing, standings
from billing.queries.views import (
    Plan,
    PlanOffer,
    StaffLimits,
    UsageView,
    WindowView,
    plan,
    plan_offers,
    reset_refusal,
    resets_left,
    restricts_models,
    staff_limits,
    usage,
    usage_of,
    user_by_email,
)

__all__ = [
    "Balance",
    "Credits",
    "Entry",
    "Expiring",
    "Filters",
    "Meter",
    "Plan",
    "PlanOffer",
    "StaffLimits",
    "Standing",
    "Statement",
    "UsageView",
    "WindowView",
    "balance",
    "credits",
    "expiring",
    "forget_policy",
    "plan",
    "plan_offers",
    "prices",
    "reset_refusal",
    "resets_left",
    "restricts_models",
    "rules",
    "staff_limits",
    "standing",
    "standings",
    "statement",
    "stream_entries",
    "usage",
    "usage_of",
    "user_by_email",
]
