"""Automatic top-ups: off until the user consents, one charge at a time, and off again after the first declined charge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from billing import accounts, notices, policies
from billing.errors import CardDeclined, InvalidRequest, NoSavedCard, PaymentsDisabled, PaymentServiceError
from billing.models import Account, AutoTopUp, TopUp
from billing.selectors import plan_status
from billing.stripe import api_client, objects, payment_api
from billing.top_ups import purchases

log = structlog.get_logger(__name__)
STUCK_AFTER = timedelta(minutes=2)  # by then its own task has ended
GIVEN_UP_AFTER = timedelta(
    hours=23
)  # Stripe drops idempotency keys after a day, so a later attempt could charge twice


@dataclass(frozen=True, kw_only=True)
class AutoTopUpRequest:
    enabled: bool
    threshold_cents: int
    amount_cents: int
    consent: bool


@dataclass(frozen=True, kw_only=True)
class AutoTopUpView:
    enabled: bool
    threshold_cents: int
    amount_cents: int
    disabled_reason: str


def get_auto_top_up(user_id: int) -> AutoTopUpView:
    row = AutoTopUp.objects.filter(account__user=user_id).first() or AutoTopUp()
    return AutoTopUpView(
        enabled=row.enabled,
        threshold_cents=row.threshold_cents,
        amount_cents=row.amount_cents,
        disabled_reason=row.disabled_reason,
    )


def configure_auto_top_up(user_id: int, request: AutoTopUpRequest) -> AutoTopUpView:
    """Save the settings. Switching on needs payments, consent and a saved card; switching off always works."""
    account = accounts.get_or_create_account(user_id)
    if request.enabled:
        _check_request(account, request)
    AutoTopUp.objects.update_or_create(
        account=account,
        defaults={
            "enabled": request.enabled,
            "threshold_cents": request.threshold_cents,
            "amount_cents": request.amount_cents,
            "disabled_reason": "",
            **({"failures": 0} if request.enabled else {}),
        },
    )
    return get_auto_top_up(user_id)


def _check_request(account: Account, request: AutoTopUpRequest) -> None:
    if not plan_status.are_payments_enabled():
        raise PaymentsDisabled
    purchases.check_top_up_amount("amount_cents", request.amount_cents)
    if request.threshold_cents > policies.get_rules().policy.top_up_max_cents:
        raise InvalidRequest({"threshold_cents": [_("This is more than the largest possible top-up.")]})
    if not request.consent:
        raise InvalidRequest({"consent": [_("Agree to automatic charges to turn this on.")]})
    deadline = api_client.start_request_deadline()
    if not account.stripe_customer_id or not payment_api.list_saved_cards(
        deadline, account.stripe_customer_id
    ):
        raise NoSavedCard


def disable_auto_top_up(account_id: int, reason: str) -> bool:
    """Switch off without the user's request. Return False if it was already off."""
    on = AutoTopUp.objects.enabled().filter(account=account_id)
    return bool(on.update(enabled=False, disabled_reason=reason, failures=F("failures") + 1))


def erase_auto_top_up(user_id: int) -> int:
    gone = AutoTopUp.objects.enabled().filter(account__user=user_id)
    return gone.update(enabled=False, disabled_reason="erased")


# --- Charging ---


def top_up_if_low(account_id: int) -> None:
    """Start a top-up if the balance is still low. Of concurrent calls, one charges."""
    account = Account.objects.select_related("user").get(pk=account_id)
    auto_top_up = AutoTopUp.objects.enabled().filter(account=account).first()
    if (
        auto_top_up is None
        or account.credit_balance_cents >= auto_top_up.threshold_cents
        or not plan_status.are_payments_enabled()
    ):
        return
    top_up = _start_auto_top_up(account, auto_top_up.amount_cents)
    if top_up is not None:
        charge_top_up(top_up)


def _start_auto_top_up(account: Account, cents: int) -> TopUp | None:
    """Create a top-up under the account's lock, or return None if one is open or the daily maximum is reached.

    Open top-ups are read rather than left to the unique constraint: the constraint would wait for a transaction that
    credits the last one, which in turn waits for the account's lock.
    """
    most = policies.get_rules().policy.auto_top_up_max_per_day
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account.pk)
        mine = TopUp.objects.filter(account=account, kind=TopUp.Kind.AUTO)
        is_open = mine.unfinished().exists()
        if is_open or mine.filter(created_at__gte=today).count() >= most:
            return None
        return TopUp.objects.create(account=account, kind=TopUp.Kind.AUTO, amount_cents=cents)


def charge_top_up(top_up: TopUp) -> None:
    """Charge the saved card, with the top-up's own idempotency key. Credits follow by webhook."""
    deadline = api_client.start_task_deadline()
    try:
        card_id = _choose_card(deadline, top_up.account.stripe_customer_id)
        intent = payment_api.charge_saved_card(
            deadline,
            customer_id=top_up.account.stripe_customer_id or "",
            card_id=card_id,
            amount_cents=top_up.amount_cents,
            currency=settings.BILLING_CURRENCY,
            top_up_id=str(top_up.pk),
        )
    except NoSavedCard:
        fail_top_up(top_up, "no_saved_card")
    except CardDeclined as refusal:
        fail_top_up(top_up, "authentication_required" if refusal.needs_customer else "card_declined")
    except PaymentServiceError as problem:
        if not problem.retryable:
            fail_top_up(top_up, "refused")
        else:
            log.warning("auto_top_up_postponed", top_up_id=str(top_up.pk), error=type(problem).__name__)
    else:
        purchases.move_top_up(top_up.pk, purchases.TopUpState.OPEN, payment_intent_id=intent.id)


def _choose_card(deadline: api_client.StripeDeadline, customer_id: str | None) -> str:
    """Return the customer's default card, else the newest."""
    customer = payment_api.get_customer(deadline, customer_id) if customer_id else None
    if customer is None:
        raise NoSavedCard
    if customer.default_card_id:
        return customer.default_card_id
    cards = payment_api.list_saved_cards(deadline, customer.id)
    if not cards:
        raise NoSavedCard
    return cards[0].id


def fail_top_up(top_up: TopUp, reason: str) -> None:
    """Mark it failed, switch automatic top-ups off and notify the user, once."""
    with transaction.atomic():
        if not purchases.move_top_up(top_up.pk, purchases.TopUpState.FAILED):
            return
        disable_auto_top_up(top_up.account_id, reason)
        notices.post_notice(
            top_up.account.user_id,
            "auto_top_up_off",
            dedupe_key=f"auto_top_up_off:{top_up.pk}",
            data={"reason": reason, "amount_cents": top_up.amount_cents},
            mail=True,
        )


def retry_stuck_charges() -> int:
    """Retry charges of unknown outcome while Stripe still knows their key. Return how many there were."""
    if not plan_status.are_payments_enabled():
        return 0
    before = timezone.now() - STUCK_AFTER
    stuck = TopUp.objects.filter(
        kind=TopUp.Kind.AUTO, state=purchases.TopUpState.CREATED, created_at__lt=before
    )
    top_ups = list(stuck.select_related("account"))
    for top_up in top_ups:
        if not AutoTopUp.objects.enabled().filter(account=top_up.account_id).exists():
            purchases.move_top_up(
                top_up.pk, purchases.TopUpState.FAILED
            )  # switched off; if it was paid after all, the webhook credits it
        elif top_up.created_at < timezone.now() - GIVEN_UP_AFTER:
            fail_top_up(top_up, "refused")
        else:
            charge_top_up(top_up)
    return len(top_ups)


# --- Webhooks ---


def apply_payment_intent(intent: objects.PaymentIntent) -> bool:
    """Apply the outcome of an automatic charge. Return False if it is not one; manual top-ups follow their checkout."""
    top_up = purchases.find_top_up(intent.metadata.get("top_up", ""))
    if top_up is None or top_up.kind != TopUp.Kind.AUTO:
        return False
    if intent.status == "succeeded":
        _credit_paid_intent(top_up, intent)
    elif intent.status in ("requires_payment_method", "requires_action", "canceled"):
        fail_top_up(top_up, "card_declined")
    return True


def _credit_paid_intent(top_up: TopUp, intent: objects.PaymentIntent) -> None:
    agreed = (top_up.amount_cents, settings.BILLING_CURRENCY, top_up.account.stripe_customer_id)
    if (intent.received_cents, intent.currency, intent.customer_id) != agreed:
        purchases.move_to_review(top_up, "automatic charge")
        return
    purchases.credit_top_up(top_up, payment_intent_id=intent.id)
    AutoTopUp.objects.filter(account=top_up.account_id).update(failures=0)
