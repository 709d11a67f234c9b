"""A user's plan as he may see it: tier, what it costs, and what will become of it (B12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.conf import settings
from django.db.models import Exists, OuterRef, Subquery
from django.utils import timezone

from billing import plans, policies
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.queries import pending
from billing.queries.pending import NOTHING, Pending

Action = Literal["none", "checkout", "pay_invoice", "portal"]
Word = Literal["none", "trialing", "active", "past_due", "unpaid", "granted"]

WORDS: dict[str, Word] = {
    "trialing": "trialing",
    "active": "active",
    "past_due": "past_due",
    "unpaid": "unpaid",
    "paused": "unpaid",
}


@dataclass(frozen=True, kw_only=True)
class Status:
    """B12.1. `url` is empty unless `action` says what it is for."""

    tier: str
    status: Word
    monthly_cost_cents: int
    tier_costs_cents: dict[str, int]
    proration_credit_cents: int
    pending_tier: str | None
    pending_tier_effective_at: datetime | None
    pending_unknown: bool
    trial_ends_at: datetime | None
    grace_until: datetime | None
    current_period_end: datetime | None
    payments_enabled: bool
    action: Action
    url: str


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """Everything the plan page shows: the public status, and what it may say beyond it."""

    status: Status
    lapsed: bool
    unpaid_upgrade_url: str
    has_customer: bool
    granted_tier: str | None
    trial_used: bool
    checkout_open: bool
    sold: frozenset[str]


def payments_on() -> bool:
    """The switch of staff, and a key to pay with (B19.1)."""
    return bool(settings.STRIPE_SECRET_KEY) and policies.rules().policy.payments_enabled


def has_portal(user_id: int) -> bool:
    """Whether Stripe has pages for him: he paid for something once, and payments are on (B15.3)."""
    return (
        payments_on() and Account.objects.filter(user_id=user_id, stripe_customer_id__isnull=False).exists()
    )


def subscription(user_id: int, *, action: Action = "none", url: str = "") -> Status:
    return plan_state(user_id, action=action, url=url).status


def plan_state(user_id: int, *, action: Action = "none", url: str = "") -> PlanState:
    now = timezone.now()
    account = _account(user_id)
    mirror = _mirror(account)
    tier = account.tier if account else "FREE"
    policies_by_tier = {policy.tier: policy for policy in TierPolicy.objects.all()}
    costs = {name: policy.monthly_cents for name, policy in policies_by_tier.items()}
    to_come = _to_come(account, mirror, now)
    known = to_come or NOTHING
    status = Status(
        tier=tier,
        status=_word(account, mirror),
        monthly_cost_cents=costs.get(tier, 0),
        tier_costs_cents={askable: costs.get(askable, 0) for askable in plans.ASKABLE},
        proration_credit_cents=proration_credit_cents(mirror, costs, now),
        pending_tier=known.tier,
        pending_tier_effective_at=known.effective_at,
        pending_unknown=to_come is None,
        trial_ends_at=mirror.trial_end if mirror and mirror.status == "trialing" else None,
        grace_until=mirror.grace_until if mirror else None,
        current_period_end=mirror.period_end if mirror and mirror.status in WORDS else None,
        payments_enabled=payments_on(),
        action=action,
        url=url,
    )
    return PlanState(
        status=status,
        lapsed=bool(mirror and mirror.status == "past_due" and not mirror.entitles),
        unpaid_upgrade_url=known.invoice_url,
        has_customer=bool(account and account.stripe_customer_id),
        granted_tier=account.granted_tier if account else None,
        trial_used=bool(account and account.trial_used_at),
        checkout_open=bool(account and account.checkout_open),  # type: ignore[attr-defined]
        sold=frozenset(
            name for name, policy in policies_by_tier.items() if policy.selectable and policy.stripe_price_id
        ),
    )


def proration_credit_cents(mirror: Subscription | None, costs: Mapping[str, int], now: datetime) -> int:
    """What is left of the paid period, rounded down; nothing in a trial or without one (B12.2)."""
    if mirror is None or mirror.status != "active" or not (mirror.period_start and mirror.period_end):
        return 0
    second = timedelta(seconds=1)
    whole = (mirror.period_end - mirror.period_start) // second
    unused = (mirror.period_end - now) // second
    if whole <= 0 or unused <= 0:
        return 0
    return costs.get(mirror.tier or "", 0) * min(unused, whole) // whole


# --- reading --------------------------------------------------------------------------------------------


def _account(user_id: int) -> Account | None:
    """With its subscription and its newest plan change, by which copies of what is pending are known as old."""
    newest = PlanChange.objects.filter(account=OuterRef("pk")).order_by("-created_at", "-pk").values("pk")[:1]
    checkouts = PlanChange.objects.filter(account=OuterRef("pk"), kind="CHECKOUT", state="STARTED")
    rows = Account.objects.select_related("subscription").annotate(
        newest_change=Subquery(newest), checkout_open=Exists(checkouts)
    )
    return rows.filter(user_id=user_id).first()


def _mirror(account: Account | None) -> Subscription | None:
    return account.subscription if account and hasattr(account, "subscription") else None


def _word(account: Account | None, mirror: Subscription | None) -> Word:
    if mirror is not None and mirror.status in WORDS:
        return WORDS[mirror.status]
    return "granted" if account and account.tier != "FREE" else "none"


def _to_come(account: Account | None, mirror: Subscription | None, now: datetime) -> Pending | None:
    """None: Stripe could not be asked. Nobody is asked about somebody who has no running subscription (B12.c3)."""
    if account is None or mirror is None or not account.stripe_customer_id:
        return NOTHING
    if mirror.status not in pending.LIVE or account.tier == "ENTERPRISE":
        return NOTHING
    age = f"{account.newest_change}:{mirror.synced_at.timestamp()}"  # type: ignore[attr-defined]
    changing = account.change_lease_until is not None and account.change_lease_until >= now
    return pending.of(mirror.stripe_id, user_id=account.user_id, age=age, keep=not changing)
