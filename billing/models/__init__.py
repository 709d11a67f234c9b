"""Billing's models, one module per idea, with the constraints the database enforces."""

from billing.models.account import (
    TIER_CHOICES,
    Account,
    BillingNotice,
)
from billing.models.ledger import (
    LedgerAllocation,
    LedgerEntry,
)
from billing.models.policy import (
    POLICY_ID,
    LimitPolicy,
    ModelPrice,
    TierPolicy,
)
from billing.models.subscription import (
    PlanChange,
    StripeEvent,
    Subscription,
)
from billing.models.top_up import (
    AutoTopUp,
    TopUp,
)
from billing.models.usage import (
    MonthlyUsage,
    UsageRecord,
    UsageReset,
    UsageWindow,
)

__all__ = [
    "POLICY_ID",
    "TIER_CHOICES",
    "Account",
    "AutoTopUp",
    "BillingNotice",
    "LedgerAllocation",
    "LedgerEntry",
    "LimitPolicy",
    "ModelPrice",
    "MonthlyUsage",
    "PlanChange",
    "StripeEvent",
    "Subscription",
    "TierPolicy",
    "TopUp",
    "UsageRecord",
    "UsageReset",
    "UsageWindow",
]
