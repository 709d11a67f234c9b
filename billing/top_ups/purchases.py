"""Top-ups: state transitions, buying through a checkout, and crediting what Stripe reports as paid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing import accounts, ledger, metrics, policies
from billing.errors import InvalidRequest, PaymentsDisabled, PaymentServiceError
from billing.models import Account, TopUp
from billing.selectors import plan_status
from billing.stripe import api_client, checkout_api, objects, payment_api
from billing.top_ups import auto_top_ups

log = structlog.get_logger(__name__)


TopUpState = TopUp.State
ALLOWED_TRANSITIONS: dict[str, tuple[str, ...]] = {
    TopUpState.OPEN: (TopUpState.CREATED,),
    # A late payment still counts.
    TopUpState.PAID: (TopUpState.CREATED, TopUpState.OPEN, TopUpState.EXPIRED, TopUpState.FAILED),
    TopUpState.FAILED: (TopUpState.CREATED, TopUpState.OPEN),
    TopUpState.EXPIRED: (TopUpState.CREATED, TopUpState.OPEN),
    TopUpState.REVIEW: (TopUpState.CREATED, TopUpState.OPEN, TopUpState.EXPIRED, TopUpState.FAILED),
}
PAID_STATES = (
    TopUpState.PAID,
    TopUpState.PARTLY_REVERSED,
    TopUpState.REVERSED,
)  # which of them depends on how much was reversed


def move_top_up(top_up_id: UUID, to: str, **fields: Any) -> bool:
    """Move a top-up to a state. Return False if it was already elsewhere and somebody else did what follows."""
    mine = TopUp.objects.filter(pk=top_up_id, state__in=ALLOWED_TRANSITIONS[to])
    return bool(mine.update(state=to, **fields))


def update_reversal_state(top_up: TopUp, reversed_cents: int) -> None:
    """Set the state by how much of the payment is reversed. It may move in any direction."""
    if reversed_cents <= 0:
        to = TopUpState.PAID
    elif reversed_cents < top_up.amount_cents:
        to = TopUpState.PARTLY_REVERSED
    else:
        to = TopUpState.REVERSED
    TopUp.objects.filter(pk=top_up.pk, state__in=PAID_STATES).update(state=to)


# --- Buying ---

IDEMPOTENCY_KEY_LIFETIME = timedelta(hours=24)
CHECKOUT_PAGE_LIFETIME = timedelta(hours=1)
MIN_CHECKOUT_PAGE_LIFETIME = timedelta(minutes=31)  # Stripe's minimum is half an hour


@dataclass(frozen=True, kw_only=True)
class TopUpPurchase:
    """A requested purchase, with redirect URLs that were already checked."""

    amount_cents: int
    success_url: str  # `{top_up}` is replaced by the top-up's id
    cancel_url: str
    save_card: bool = False


def start_top_up(user_id: int, purchase: TopUpPurchase, *, key: str | None) -> TopUp:
    """Create a top-up and its checkout. The same key within a day returns the same top-up."""
    if not plan_status.are_payments_enabled():
        raise PaymentsDisabled
    check_top_up_amount("amount_cents", purchase.amount_cents)
    account = accounts.get_or_create_account(user_id)
    top_up = _get_or_create_top_up(account, purchase.amount_cents, key)
    if top_up.state == TopUpState.CREATED:
        _open_checkout(account, top_up, purchase)
    return TopUp.objects.get(pk=top_up.pk)


def check_top_up_amount(name: str, cents: int) -> None:
    policy = policies.get_rules().policy
    if not policy.top_up_min_cents <= cents <= policy.top_up_max_cents:
        least, most = _format_amount(policy.top_up_min_cents), _format_amount(policy.top_up_max_cents)
        bounds = _("Choose an amount between %(least)s and %(most)s.") % {"least": least, "most": most}
        raise InvalidRequest({name: [bounds]})


def _format_amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d} {settings.BILLING_CURRENCY.upper()}"


def _get_or_create_top_up(account: Account, cents: int, key: str | None) -> TopUp:
    if key is None:
        return _create_top_up(account, cents)
    same_key = TopUp.objects.filter(account=account, idempotency_key=key)
    now = timezone.now()
    same_key.filter(created_at__lt=now - IDEMPOTENCY_KEY_LIFETIME).update(idempotency_key=None)
    same_key.filter(
        state=TopUpState.CREATED, created_at__lt=now - CHECKOUT_PAGE_LIFETIME + MIN_CHECKOUT_PAGE_LIFETIME
    ).update(
        idempotency_key=None  # too late to create its checkout with the same expiry
    )
    try:
        with transaction.atomic():
            return _create_top_up(account, cents, key)
    except IntegrityError:
        existing = same_key.get()
        if existing.amount_cents != cents:
            raise InvalidRequest(
                {"Idempotency-Key": [_("This key was already used for another amount.")]}
            ) from None
        return existing


def _create_top_up(account: Account, cents: int, key: str | None = None) -> TopUp:
    """Set created_at by our clock, because the checkout's expiry is computed from it."""
    return TopUp.objects.create(
        account=account, amount_cents=cents, idempotency_key=key, created_at=timezone.now()
    )


def _open_checkout(account: Account, top_up: TopUp, purchase: TopUpPurchase) -> None:
    """Create the checkout, once per top-up at Stripe. If this fails, the top-up stays CREATED and can be retried."""
    deadline = api_client.start_request_deadline()
    session = checkout_api.create_credit_checkout(
        deadline,
        checkout_api.CreditPurchase(
            customer_id=accounts.ensure_stripe_customer(account, deadline),
            top_up_id=str(top_up.pk),
            amount_cents=top_up.amount_cents,
            currency=settings.BILLING_CURRENCY,
            save_card=purchase.save_card,
            success_url=purchase.success_url.replace("{top_up}", str(top_up.pk)),
            cancel_url=purchase.cancel_url,
            expires_at=top_up.created_at
            + CHECKOUT_PAGE_LIFETIME,  # must be equal in every attempt under the same key
        ),
        key=f"topup:{top_up.pk}:checkout",
    )
    move_top_up(top_up.pk, TopUpState.OPEN, checkout_session_id=session.id, checkout_url=session.url)


# --- Webhooks ---


def fulfil_checkout(session: objects.CheckoutSession) -> bool:
    """Credit a paid checkout, once. Return False if it is not for a top-up."""
    top_up = find_top_up(session.client_reference_id)
    if top_up is None:
        return False
    if session.payment_status == "unpaid":  # a delayed payment method; another event follows
        return True
    mismatch = _find_mismatch(top_up, session)
    if mismatch:
        move_to_review(top_up, mismatch)
    else:
        credit_top_up(top_up, checkout_session_id=session.id, payment_intent_id=session.payment_intent_id)
    return True


def _find_mismatch(top_up: TopUp, session: objects.CheckoutSession) -> str:
    """Return what differs from the agreed purchase, or ""."""
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


def move_to_review(top_up: TopUp, mismatch: str) -> None:
    if move_top_up(top_up.pk, TopUpState.REVIEW, checkout_url=""):
        metrics.alert_staff(
            "top_up_review",
            f"The payment doesn't match the top-up: {mismatch}.",
            top_up=str(top_up.pk),
            account=top_up.account_id,
        )


def credit_top_up(top_up: TopUp, **ids: str) -> None:
    """Move to PAID and post the credits in one transaction, once."""
    with transaction.atomic():
        if move_top_up(top_up.pk, TopUpState.PAID, checkout_url="", **ids):
            ledger.post_top_up(
                top_up.account.user_id,
                top_up.amount_cents,
                key=f"topup:{top_up.pk}",
                reason="Top-up" if top_up.kind == TopUp.Kind.MANUAL else "Automatic top-up",
                reference=str(top_up.pk),
            )


def end_checkout(session: objects.CheckoutSession) -> bool:
    """Handle a checkout that expired unpaid or whose payment failed."""
    top_up = find_top_up(session.client_reference_id)
    if top_up is None:
        return False
    if session.status == "expired":
        move_top_up(top_up.pk, TopUpState.EXPIRED, checkout_url="")
    elif session.payment_status == "unpaid":
        move_top_up(top_up.pk, TopUpState.FAILED, checkout_url="")
    return True


def find_top_up(top_up_id: str) -> TopUp | None:
    """Return the top-up named in Stripe's metadata, which other systems may write too."""
    try:
        key = UUID(top_up_id)
    except ValueError:
        return None
    return TopUp.objects.select_related("account").filter(pk=key).first()


RECONCILE_AFTER = timedelta(hours=2)  # a checkout is open for one hour
RECONCILE_UNTIL = timedelta(days=40)  # after this Stripe will have no outcome either


def reconcile_open_top_ups() -> int:
    """Reconcile unfinished top-ups and return how many were checked."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    now = timezone.now()
    unfinished = TopUp.objects.unfinished().filter(
        created_at__lt=now - RECONCILE_AFTER, created_at__gt=now - RECONCILE_UNTIL
    )
    top_ups = list(unfinished.select_related("account"))
    for top_up in top_ups:
        try:
            _reconcile_top_up(top_up)
        except PaymentServiceError as problem:
            log.warning("top_up_reconcile_failed", top_up_id=str(top_up.pk), error=type(problem).__name__)
    return len(top_ups)


def _reconcile_top_up(top_up: TopUp) -> None:
    deadline = api_client.start_task_deadline()
    if top_up.kind == TopUp.Kind.AUTO:
        intent = (
            payment_api.get_payment_intent(deadline, top_up.payment_intent_id)
            if top_up.payment_intent_id
            else None
        )
        if intent is not None:
            auto_top_ups.apply_payment_intent(intent)
    elif top_up.checkout_session_id is None:
        move_top_up(top_up.pk, TopUpState.EXPIRED)  # its checkout was never created
    else:
        session = checkout_api.get_checkout(deadline, top_up.checkout_session_id)
        if session is not None and session.status == "complete":
            fulfil_checkout(session)
        elif session is None or session.status == "expired":
            move_top_up(top_up.pk, TopUpState.EXPIRED, checkout_url="")
