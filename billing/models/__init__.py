"""Tables of money, and the rules the database itself keeps (B3); by idea, one module each."""

from billing.models.accounts import TIER_CHOICES, Account
from billing.models.credits import LedgerAllocation, LedgerEntry
from billing.models.notices import BillingNotice
from billing.models.payments import AutoTopUp, TopUp
from billing.models.policies import ONLY_POLICY, LimitPolicy, ModelPrice, TierPolicy
from billing.models.subscriptions import PlanChange, StripeEvent, Subscription
from billing.models.usage import MonthlyUsage, UsageRecord, UsageReset, UsageWindow

__all__ = [
    "ONLY_POLICY",
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
