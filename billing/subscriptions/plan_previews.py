"""Preview the cost of a plan change; an upgrade made soon after costs exactly that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone

from billing import accounts, redis_counters
from billing.errors import CountersUnavailable, PlanManagedByAdmin
from billing.models import TierPolicy
from billing.stripe import api_client, objects, subscription_api
from billing.subscriptions import current_plan
from billing.subscriptions.plan_decisions import PlanAction, decide_with_payment, decide_without_payment

PREVIEW_TIMEOUT_SECONDS = 16.0  # two calls


@dataclass(frozen=True, kw_only=True)
class Price:
    due_now_cents: int
    proration_date: datetime


def preview_plan_change(user_id: int, requested_tier: str) -> Price:
    """Preview the cost, refusing as the change would. The date is kept on our side, because a date chosen by the client
    could lower the price.
    """
    now = timezone.now().replace(microsecond=0)
    account = accounts.get_or_create_account(user_id)
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    deadline = api_client.start_request_deadline(PREVIEW_TIMEOUT_SECONDS)
    current = current_plan.load_current_plan(account.pk, deadline)
    policy = TierPolicy.objects.filter(tier=requested_tier).first()
    situation = current.get_situation()
    action = decide_without_payment(situation, requested_tier) or decide_with_payment(
        situation, requested_tier, current_plan.get_tier_offer(policy)
    )
    if policy is None or action not in (PlanAction.UPGRADE, PlanAction.CHECKOUT):
        return Price(due_now_cents=0, proration_date=now)
    if action is PlanAction.CHECKOUT or current.subscription is None:
        free_now = policy.trial_days > 0 and account.trial_used_at is None
        return Price(due_now_cents=0 if free_now else policy.monthly_cents, proration_date=now)
    preview = subscription_api.preview_price_change(
        deadline, current.subscription, policy.stripe_price_id or "", at=now
    )
    _cache_date(user_id, policy.stripe_price_id or "", now)
    return Price(due_now_cents=preview.due_now_cents, proration_date=preview.proration_date)


def get_previewed_date(
    user_id: int, subscription: objects.StripeSubscription, price_id: str
) -> datetime | None:
    """Return the date of the last preview if it lies in the current period."""
    try:
        text = redis_counters.read_preview_date(user_id, price_id)
    except CountersUnavailable:
        return None
    if not text.isdecimal() or subscription.period_start is None:
        return None
    previewed_at = datetime.fromtimestamp(int(text), UTC)
    return previewed_at if subscription.period_start <= previewed_at <= timezone.now() else None


def _cache_date(user_id: int, price_id: str, at: datetime) -> None:
    try:
        redis_counters.cache_preview_date(user_id, price_id, str(int(at.timestamp())))
    except CountersUnavailable:
        return  # the upgrade then uses its own date, seconds later
