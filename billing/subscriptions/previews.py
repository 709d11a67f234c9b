"""What an upgrade would cost now; if it is made soon, it costs exactly that (B12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone

from billing import accounts, counters, gateway
from billing.errors import CountersDown, ManagedByAdmin
from billing.models import TierPolicy
from billing.subscriptions import situations
from billing.subscriptions.decisions import Move, with_payment, without_payment

LOOK_SECONDS = 16.0  # two calls


@dataclass(frozen=True, kw_only=True)
class Price:
    due_now_cents: int
    proration_date: datetime


def preview(user_id: int, asked: str) -> Price:
    """Refused as the change itself would be. The date is remembered here: whoever could name one could pay less."""
    now = timezone.now().replace(microsecond=0)
    account = accounts.get_or_create(user_id)
    if account.tier == "ENTERPRISE":
        raise ManagedByAdmin
    deadline = gateway.in_request(LOOK_SECONDS)
    present = situations.look(account.pk, deadline)
    policy = TierPolicy.objects.filter(tier=asked).first()
    situation = present.situation()
    move = without_payment(situation, asked) or with_payment(situation, asked, situations.offer_of(policy))
    if policy is None or move not in (Move.UPGRADE, Move.CHECKOUT):
        return Price(due_now_cents=0, proration_date=now)
    if move is Move.CHECKOUT or present.one is None:
        free_now = policy.trial_days > 0 and account.trial_used_at is None
        return Price(due_now_cents=0 if free_now else policy.monthly_cents, proration_date=now)
    shown = gateway.preview_price(deadline, present.one, policy.stripe_price_id or "", at=now)
    _remember(user_id, policy.stripe_price_id or "", now)
    return Price(due_now_cents=shown.due_now_cents, proration_date=shown.proration_date)


def last_date(user_id: int, one: gateway.Subscription, price_id: str) -> datetime | None:
    """Of the last preview, if it lies in the period that runs."""
    try:
        text = counters.read_preview(user_id, price_id)
    except CountersDown:
        return None
    if not text.isdecimal() or one.period_start is None:
        return None
    said = datetime.fromtimestamp(int(text), UTC)
    return said if one.period_start <= said <= timezone.now() else None


def _remember(user_id: int, price_id: str, at: datetime) -> None:
    try:
        counters.keep_preview(user_id, price_id, str(int(at.timestamp())))
    except CountersDown:
        return  # then the upgrade is reckoned by its own moment: a matter of seconds
