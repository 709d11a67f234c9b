"""A top-up by hand: a page at Stripe is opened here; only Stripe's own word afterwards adds credit (B10.1, B10.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing import accounts, alerts, gateway, ledger, policies, queries
from billing.errors import InvalidRequest, PaymentsOff
from billing.models import Account, TopUp
from billing.payments import states

KEY_LIFE = timedelta(hours=24)
PAGE_LIFE = timedelta(hours=1)
SHORTEST_PAGE = timedelta(minutes=31)  # Stripe opens none for less than half an hour


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """What a user asks for; the addresses were looked at already."""

    amount_cents: int
    success_url: str  # the top-up's id is put in for `{top_up}`
    cancel_url: str
    save_card: bool = False


def buy(user_id: int, purchase: Purchase, *, key: str | None) -> TopUp:
    """With the same key within a day: the same top-up, however often and from how many tabs."""
    if not queries.payments_on():
        raise PaymentsOff
    check_amount("amount_cents", purchase.amount_cents)
    account = accounts.get_or_create(user_id)
    top_up = _made(account, purchase.amount_cents, key)
    if top_up.state == states.State.CREATED:
        _open(account, top_up, purchase)
    return TopUp.objects.get(pk=top_up.pk)


def check_amount(name: str, cents: int) -> None:
    policy = policies.rules().policy
    if not policy.top_up_min_cents <= cents <= policy.top_up_max_cents:
        least, most = _written(policy.top_up_min_cents), _written(policy.top_up_max_cents)
        bounds = _("A top-up is between %(least)s and %(most)s.") % {"least": least, "most": most}
        raise InvalidRequest({name: [bounds]})


def _written(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d} {settings.BILLING_CURRENCY.upper()}"


def _made(account: Account, cents: int, key: str | None) -> TopUp:
    if key is None:
        return _new(account, cents)
    same = TopUp.objects.filter(account=account, idempotency_key=key)
    now = timezone.now()
    same.filter(created_at__lt=now - KEY_LIFE).update(idempotency_key=None)
    same.filter(state=states.State.CREATED, created_at__lt=now - PAGE_LIFE + SHORTEST_PAGE).update(
        idempotency_key=None  # its page can no longer be opened as it was asked for
    )
    try:
        with transaction.atomic():
            return _new(account, cents, key)
    except IntegrityError:
        known = same.get()
        if known.amount_cents != cents:
            raise InvalidRequest({"Idempotency-Key": [_("It was used for another amount.")]}) from None
        return known


def _new(account: Account, cents: int, key: str | None = None) -> TopUp:
    """Dated by the clock that Stripe is spoken to with: the page's end is reckoned from it."""
    return TopUp.objects.create(
        account=account, amount_cents=cents, idempotency_key=key, created_at=timezone.now()
    )


def _open(account: Account, top_up: TopUp, purchase: Purchase) -> None:
    """Twice with the same id is once at Stripe; what fails here stays CREATED, and can be asked for again."""
    deadline = gateway.in_request()
    session = gateway.sell_credit(
        deadline,
        gateway.CreditPurchase(
            customer_id=accounts.ensure_customer(account, deadline),
            top_up_id=str(top_up.pk),
            amount_cents=top_up.amount_cents,
            currency=settings.BILLING_CURRENCY,
            save_card=purchase.save_card,
            success_url=purchase.success_url.replace("{top_up}", str(top_up.pk)),
            cancel_url=purchase.cancel_url,
            expires_at=top_up.created_at + PAGE_LIFE,  # the same at every attempt: so asks the key
        ),
        key=f"topup:{top_up.pk}:checkout",
    )
    states.move(top_up.pk, states.State.OPEN, checkout_session_id=session.id, checkout_url=session.url)


# --- Stripe's word --------------------------------------------------------------------------------------


def fulfil(session: gateway.CheckoutSession) -> bool:
    """Credit for what was paid on this page, once. False when it sells nothing of ours."""
    top_up = find(session.client_reference_id)
    if top_up is None:
        return False
    if session.payment_status == "unpaid":  # a bank that takes days; its own event follows
        return True
    wrong = _mismatch(top_up, session)
    if wrong:
        to_review(top_up, wrong)
    else:
        credit(top_up, checkout_session_id=session.id, payment_intent_id=session.payment_intent_id)
    return True


def _mismatch(top_up: TopUp, session: gateway.CheckoutSession) -> str:
    """What is not as it was agreed; "" when all is."""
    if session.payment_status != "paid":
        return "payment_status"
    if session.subtotal_cents != top_up.amount_cents:
        return "amount"
    if session.currency != settings.BILLING_CURRENCY:
        return "currency"
    if session.customer_id != top_up.account.stripe_customer_id:
        return "customer"
    if top_up.checkout_session_id not in (None, session.id):
        return "session"
    return ""


def to_review(top_up: TopUp, wrong: str) -> None:
    if states.move(top_up.pk, states.State.REVIEW, checkout_url=""):
        alerts.call_staff(
            "top_up_review",
            f"What was paid is not what was asked for: {wrong}.",
            top_up=str(top_up.pk),
            account=top_up.account_id,
        )


def credit(top_up: TopUp, **ids: str) -> None:
    """State and ledger together, or neither; a second time does nothing."""
    with transaction.atomic():
        if states.move(top_up.pk, states.State.PAID, checkout_url="", **ids):
            ledger.top_up(
                top_up.account.user_id,
                top_up.amount_cents,
                key=f"topup:{top_up.pk}",
                reason="Top-up" if top_up.kind == TopUp.Kind.MANUAL else "Automatic top-up",
                reference=str(top_up.pk),
            )


def session_ended(session: gateway.CheckoutSession) -> bool:
    """Nobody paid in time, or the bank refused in the end."""
    top_up = find(session.client_reference_id)
    if top_up is None:
        return False
    if session.status == "expired":
        states.move(top_up.pk, states.State.EXPIRED, checkout_url="")
    elif session.payment_status == "unpaid":
        states.move(top_up.pk, states.State.FAILED, checkout_url="")
    return True


def find(top_up_id: str) -> TopUp | None:
    """By what stands in Stripe's metadata, which others may write too."""
    try:
        key = UUID(top_up_id)
    except ValueError:
        return None
    return TopUp.objects.select_related("account").filter(pk=key).first()
