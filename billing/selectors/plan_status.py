"""Read a user's plan: tier, cost, pending change (asked from Stripe and cached briefly) and the plans on offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
import structlog
from django.conf import settings
from django.db.models import Exists, OuterRef, Subquery
from django.utils import timezone

from billing import plans, policies, redis_counters
from billing.errors import CountersUnavailable, PaymentsDisabled, PaymentServiceError
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.stripe import api_client, objects, subscription_api

log = structlog.get_logger(__name__)

PENDING_TIMEOUT_SECONDS = 8.0
LIVE_STATUSES = ("active", "trialing", "past_due")


@dataclass(frozen=True, kw_only=True)
class PendingPlan:
    """The next tier and when it starts, and the invoice to pay for a pending upgrade."""

    tier: str | None = None
    effective_at: datetime | None = None
    invoice_url: str = ""


NO_PENDING_PLAN = PendingPlan()


def get_pending_plan(subscription_id: str, *, user_id: int, age: str, use_cache: bool) -> PendingPlan | None:
    """Return the pending change, or None if Stripe could not be asked.

    `age` names the newest plan change and the last sync, so that a cached answer is not found after either. While a change
    is in progress, nothing is cached.
    """
    if use_cache and (cached := _read_cached(user_id, age)) is not None:
        return cached
    try:
        found = subscription_api.get_subscription(
            api_client.start_request_deadline(PENDING_TIMEOUT_SECONDS), subscription_id
        )
    except (PaymentServiceError, PaymentsDisabled) as problem:
        log.warning(
            "pending_plan_lookup_failed", subscription_id=subscription_id, error=type(problem).__name__
        )
        return None
    pending = extract_pending_plan(found, timezone.now())
    if use_cache:
        _cache_pending(user_id, age, pending)
    return pending


def extract_pending_plan(found: objects.StripeSubscription | None, now: datetime) -> PendingPlan:
    if found is None or not found.is_live:
        return NO_PENDING_PLAN
    invoice = found.latest_invoice
    unpaid = found.pending_update is not None and invoice is not None and invoice.status == "open"
    tier, effective_at = _find_next_tier(found, now)
    return PendingPlan(
        tier=tier, effective_at=effective_at, invoice_url=invoice.hosted_url if unpaid and invoice else ""
    )


def _find_next_tier(found: objects.StripeSubscription, now: datetime) -> tuple[str | None, datetime | None]:
    if found.cancel_at_period_end or found.cancel_at is not None:
        return "FREE", found.cancel_at or found.period_end
    schedule = found.schedule
    if schedule is None or schedule.is_over:
        return None, None
    for phase in schedule.phases:
        if phase.starts_at > now:
            tier = _find_tier(phase.price_id, found.id)
            return tier, phase.starts_at if tier else None
    return None, None


def _find_tier(price_id: str, subscription_id: str) -> str | None:
    tier = TierPolicy.objects.filter(stripe_price_id=price_id).values_list("tier", flat=True).first()
    if tier is None:
        log.warning("scheduled_price_unknown", subscription_id=subscription_id, price_id=price_id)
    return tier if tier in plans.REQUESTABLE_TIERS else None


# --- Cache ---


def _read_cached(user_id: int, age: str) -> PendingPlan | None:
    try:
        text = redis_counters.read_pending_plan(user_id, age)
        return msgspec.json.decode(text, type=PendingPlan) if text else None
    except (CountersUnavailable, msgspec.MsgspecError):
        return None


def _cache_pending(user_id: int, age: str, pending: PendingPlan) -> None:
    try:
        redis_counters.cache_pending_plan(user_id, age, msgspec.json.encode(pending).decode())
    except CountersUnavailable:
        log.info("pending_plan_not_cached", user_id=user_id)


# --- Plan status ---

ClientAction = Literal["none", "checkout", "pay_invoice", "portal"]
SubscriptionState = Literal["none", "trialing", "active", "past_due", "unpaid", "granted"]

STATE_BY_STRIPE_STATUS: dict[str, SubscriptionState] = {
    "trialing": "trialing",
    "active": "active",
    "past_due": "past_due",
    "unpaid": "unpaid",
    "paused": "unpaid",
}


@dataclass(frozen=True, kw_only=True)
class Status:
    """A user's plan as clients see it. `url` is empty unless `action` says what it is for."""

    tier: str
    status: SubscriptionState
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
    action: ClientAction
    url: str


@dataclass(frozen=True, kw_only=True)
class PlanPageState:
    """Everything the plan page shows: the public status and page-only details."""

    status: Status
    lapsed: bool
    unpaid_upgrade_url: str
    has_customer: bool
    granted_tier: str | None
    trial_used: bool
    checkout_open: bool
    sold: frozenset[str]


def are_payments_enabled() -> bool:
    """Return True if staff have switched payments on and a Stripe key is set."""
    return bool(settings.STRIPE_SECRET_KEY) and policies.get_rules().policy.payments_enabled


def has_portal_access(user_id: int) -> bool:
    """Return True if payments are on and the user has a Stripe customer."""
    return (
        are_payments_enabled()
        and Account.objects.filter(user_id=user_id, stripe_customer_id__isnull=False).exists()
    )


def get_subscription_status(user_id: int, *, action: ClientAction = "none", url: str = "") -> Status:
    return get_plan_state(user_id, action=action, url=url).status


def get_plan_state(user_id: int, *, action: ClientAction = "none", url: str = "") -> PlanPageState:
    now = timezone.now()
    account = _load_account(user_id)
    mirror = _get_mirror(account)
    tier = account.tier if account else "FREE"
    policies_by_tier = {policy.tier: policy for policy in TierPolicy.objects.all()}
    costs = {name: policy.monthly_cents for name, policy in policies_by_tier.items()}
    pending = _get_pending(account, mirror, now)
    known = pending or NO_PENDING_PLAN
    status = Status(
        tier=tier,
        status=_get_state(account, mirror),
        monthly_cost_cents=costs.get(tier, 0),
        tier_costs_cents={requestable: costs.get(requestable, 0) for requestable in plans.REQUESTABLE_TIERS},
        proration_credit_cents=compute_proration_credit_cents(mirror, costs, now),
        pending_tier=known.tier,
        pending_tier_effective_at=known.effective_at,
        pending_unknown=pending is None,
        trial_ends_at=mirror.trial_end if mirror and mirror.status == "trialing" else None,
        grace_until=mirror.grace_until if mirror else None,
        current_period_end=mirror.period_end if mirror and mirror.status in STATE_BY_STRIPE_STATUS else None,
        payments_enabled=are_payments_enabled(),
        action=action,
        url=url,
    )
    return PlanPageState(
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


def compute_proration_credit_cents(
    mirror: Subscription | None, costs: Mapping[str, int], now: datetime
) -> int:
    """Return the unused part of the paid period, rounded down; 0 in a trial or without a subscription."""
    if mirror is None or mirror.status != "active" or not (mirror.period_start and mirror.period_end):
        return 0
    second = timedelta(seconds=1)
    whole = (mirror.period_end - mirror.period_start) // second
    unused = (mirror.period_end - now) // second
    if whole <= 0 or unused <= 0:
        return 0
    return costs.get(mirror.tier or "", 0) * min(unused, whole) // whole


# --- Loading ---


def _load_account(user_id: int) -> Account | None:
    """Load the account with its subscription, its newest plan change and whether a checkout is open."""
    newest = PlanChange.objects.filter(account=OuterRef("pk")).order_by("-created_at", "-pk").values("pk")[:1]
    checkouts = PlanChange.objects.filter(account=OuterRef("pk"), kind="CHECKOUT", state="STARTED")
    rows = Account.objects.select_related("subscription").annotate(
        newest_change=Subquery(newest), checkout_open=Exists(checkouts)
    )
    return rows.filter(user_id=user_id).first()


def _get_mirror(account: Account | None) -> Subscription | None:
    return account.subscription if account and hasattr(account, "subscription") else None


def _get_state(account: Account | None, mirror: Subscription | None) -> SubscriptionState:
    if mirror is not None and mirror.status in STATE_BY_STRIPE_STATUS:
        return STATE_BY_STRIPE_STATUS[mirror.status]
    return "granted" if account and account.tier != "FREE" else "none"


def _get_pending(account: Account | None, mirror: Subscription | None, now: datetime) -> PendingPlan | None:
    """Return the pending change, or None if Stripe could not be asked. Without a running subscription Stripe is not asked."""
    if account is None or mirror is None or not account.stripe_customer_id:
        return NO_PENDING_PLAN
    if mirror.status not in LIVE_STATUSES or account.tier == "ENTERPRISE":
        return NO_PENDING_PLAN
    age = f"{account.newest_change}:{mirror.synced_at.timestamp()}"  # type: ignore[attr-defined]
    changing = account.change_lease_until is not None and account.change_lease_until >= now
    return get_pending_plan(mirror.stripe_id, user_id=account.user_id, age=age, use_cache=not changing)


@dataclass(frozen=True, kw_only=True)
class PlanTerms:
    """The rights that a user's tier grants. An empty tuple allows everything; a ceiling of 0 means none."""

    tier: str
    model_tiers: tuple[str, ...]
    modes: tuple[str, ...]
    turn_ceiling_microdollars: int
    limit_binds_running_turns: bool


@dataclass(frozen=True, kw_only=True)
class PlanOffer:
    """One plan as shown on its card."""

    tier: str
    name: str
    monthly_cost_cents: int
    trial_days: int
    selectable: bool
    blurb: str


def restricts_models() -> bool:
    """Return True if any tier restricts models or modes; otherwise no tier needs to be looked up."""
    return any(terms.model_tiers or terms.modes for terms in policies.get_rules().terms.values())


def get_plan_terms(user_id: int) -> PlanTerms:
    tier = Account.objects.filter(user_id=user_id).values_list("tier", flat=True).first() or "FREE"
    rules = policies.get_rules()
    terms = rules.get_terms(tier)
    return PlanTerms(
        tier=tier,
        model_tiers=terms.model_tiers,
        modes=terms.modes,
        turn_ceiling_microdollars=rules.policy.turn_ceiling_microdollars,
        limit_binds_running_turns=rules.policy.limit_binds_running_turns,
    )


def list_plan_offers() -> list[PlanOffer]:
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
