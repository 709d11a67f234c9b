"""What an upgrade would cost now; if it is made soon, it costs exactly that (B12.2)."""

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


def preview_plan_change(user_id: int, asked: str) -> Price:
    """Refused as the change itself would be. The date is remembered here: whoever could name one could pay less."""
    now = timezone.now().replace(microsecond=0)
    account = accounts.get_or_create_account(user_id)
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    deadline = api_client.start_request_deadline(PREVIEW_TIMEOUT_SECONDS)
    present = current_plan.load_current_plan(account.pk, deadline)
    policy = TierPolicy.objects.filter(tier=asked).first()
    situation = present.get_situation()
    move = decide_without_payment(situation, asked) or decide_with_payment(
        situation, asked, current_plan.get_tier_offer(policy)
    )
    if policy is None or move not in (PlanAction.UPGRADE, PlanAction.CHECKOUT):
        return Price(due_now_cents=0, proration_date=now)
    if move is PlanAction.CHECKOUT or present.subscription is None:
        free_now = policy.trial_days > 0 and account.trial_used_at is None
        return Price(due_now_cents=0 if free_now else policy.monthly_cents, proration_date=now)
    shown = subscription_api.preview_price_change(
        deadline, present.subscription, policy.stripe_price_id or "", at=now
    )
    _cache_date(user_id, policy.stripe_price_id or "", now)
    return Price(due_now_cents=shown.due_now_cents, proration_date=shown.proration_date)


def get_previewed_date(user_id: int, one: objects.StripeSubscription, price_id: str) -> datetime | None:
    """Of the last preview, if it lies in the period that runs."""
    try:
        text = redis_counters.read_preview_date(user_id, price_id)
    except CountersUnavailable:
        return None
    if not text.isdecimal() or one.period_start is None:
        return None
    said = datetime.fromtimestamp(int(text), UTC)
    return said if one.period_start <= said <= timezone.now() else None


def _cache_date(user_id: int, price_id: str, at: datetime) -> None:
    try:
        redis_counters.cache_preview_date(user_id, price_id, str(int(at.timestamp())))
    except CountersUnavailable:
        return  # then the upgrade is reckoned by its own moment: a matter of seconds
