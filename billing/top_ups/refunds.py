"""Apply refunds and disputes to the ledger by Stripe's current state, in whatever order events arrive."""

from __future__ import annotations

from django.db import transaction

from billing import ledger, notices
from billing.errors import PaymentServiceError, PaymentServiceRefusal, PaymentServiceUnavailable
from billing.models import LedgerEntry, TopUp
from billing.stripe import api_client, objects, payment_api
from billing.top_ups import auto_top_ups, purchases

EntryKind = LedgerEntry.Kind


class TopUpNotYetPaid(PaymentServiceUnavailable):
    """The payment is not credited yet. Its own event is on the way, and this one is retried after it."""


def apply_refunds(intent_id: str, deadline: api_client.StripeDeadline) -> bool:
    """Apply all refunds of a payment. Return False if the payment is not for a top-up."""
    top_up = _find_paid_top_up(intent_id, deadline)
    if top_up is None:
        return False
    with transaction.atomic():
        reversals = _TopUpReversals(
            top_up
        )  # locks before asking Stripe, so that an older answer is not written last
        for refund in reversed(
            payment_api.list_refunds(deadline, intent_id)
        ):  # Stripe lists the newest first
            if refund.takes_money:
                reversals.reverse(f"refund:{refund.id}", refund.amount_cents, "Refund")
            elif refund.status in ("failed", "canceled"):
                reversals.reinstate(f"refund:{refund.id}", f"refund-failed:{refund.id}", "Refund failed")
        reversals.save_state()
    return True


def apply_dispute(
    dispute: objects.StripeDispute, deadline: api_client.StripeDeadline, *, reinstated: bool
) -> bool:
    """Reverse the payment while it is disputed and reinstate it if won. Return False if it is not for a top-up."""
    intent_id = dispute.payment_intent_id or payment_api.get_charge_payment_intent_id(
        deadline, dispute.charge_id
    )
    top_up = _find_paid_top_up(intent_id, deadline) if intent_id else None
    if top_up is None:
        return False
    with transaction.atomic():
        reversals = _TopUpReversals(top_up)
        dispute = payment_api.get_dispute(deadline, dispute.id) or dispute  # read again under the lock
        if reinstated or dispute.status == "won":
            reversals.reinstate(f"dispute:{dispute.id}", f"dispute-won:{dispute.id}", "Dispute won")
        elif not dispute.is_warning:
            reversals.reverse(f"dispute:{dispute.id}", dispute.amount_cents, "Disputed payment")
            _disable_after_dispute(top_up, dispute.id)
        reversals.save_state()
    return True


def _disable_after_dispute(top_up: TopUp, dispute_id: str) -> None:
    # Only at the first event: if the user switches it on again afterwards, it stays on.
    is_new = notices.post_notice(
        top_up.account.user_id,
        "payment_disputed",
        dedupe_key=f"dispute:{dispute_id}",
        data={"amount_cents": top_up.amount_cents},
        mail=True,
    )
    if is_new:
        auto_top_ups.disable_auto_top_up(top_up.account_id, "dispute")


def _find_paid_top_up(intent_id: str, deadline: api_client.StripeDeadline) -> TopUp | None:
    """Find the top-up by its payment intent, or by the intent's metadata before we stored the id."""
    top_up = TopUp.objects.select_related("account").filter(payment_intent_id=intent_id).first()
    if top_up is None:
        intent = payment_api.get_payment_intent(deadline, intent_id)
        top_up = purchases.find_top_up(intent.metadata.get("top_up", "")) if intent else None
    return top_up


class _TopUpReversals:
    """One locked top-up and the ledger entries of its reversals."""

    def __init__(self, top_up: TopUp) -> None:
        self._top_up = TopUp.objects.select_for_update().select_related("account").get(pk=top_up.pk)
        if self._top_up.state not in (*purchases.PAID_STATES, purchases.TopUpState.REVIEW):
            raise TopUpNotYetPaid
        moved = LedgerEntry.objects.filter(
            account=self._top_up.account,
            reference=str(top_up.pk),
            kind__in=[EntryKind.REVERSAL, EntryKind.REINSTATEMENT],
        ).exclude(idempotency_key__endswith=":debt")
        self._entries = {entry.idempotency_key: entry for entry in moved}

    def _compute_reversed_cents(self) -> int:
        return sum(
            _get_moved_cents(entry) if entry.kind == EntryKind.REVERSAL else -_get_moved_cents(entry)
            for entry in self._entries.values()
        )

    def reverse(self, key: str, cents: int, reason: str) -> None:
        """Reverse at most what is left of the top-up; one under review was never credited."""
        cents = min(cents, self._top_up.amount_cents - self._compute_reversed_cents())
        if key not in self._entries and cents > 0 and self._top_up.state != purchases.TopUpState.REVIEW:
            self._entries[key] = ledger.reverse_payment(
                self._top_up.account.user_id, cents, key=key, reason=reason, reference=str(self._top_up.pk)
            )

    def reinstate(self, reversal: str, key: str, reason: str) -> None:
        taken = self._entries.get(reversal)
        if taken is not None and key not in self._entries:
            self._entries[key] = ledger.reinstate_payment(
                self._top_up.account.user_id,
                _get_moved_cents(taken),
                key=key,
                reason=reason,
                reference=str(self._top_up.pk),
            )

    def save_state(self) -> None:
        purchases.update_reversal_state(self._top_up, self._compute_reversed_cents())


def _get_moved_cents(entry: LedgerEntry) -> int:
    """Return the amount, whether it moved the balance or the debt."""
    return abs(entry.amount_cents) + abs(entry.debt_delta_cents)


def refund_top_up(top_up: TopUp) -> None:
    """Refund what is left of a paid top-up. The ledger follows by webhook."""
    if (
        top_up.state not in (purchases.TopUpState.PAID, purchases.TopUpState.PARTLY_REVERSED)
        or not top_up.payment_intent_id
    ):
        raise PaymentServiceRefusal("Only a paid top-up can be refunded.")
    deadline = api_client.start_request_deadline()
    refunds = [
        refund
        for refund in payment_api.list_refunds(deadline, top_up.payment_intent_id)
        if refund.takes_money
    ]
    remaining_cents = top_up.amount_cents - sum(refund.amount_cents for refund in refunds)
    if remaining_cents <= 0:
        raise PaymentServiceError("This top-up is already fully refunded.")
    payment_api.create_refund(
        deadline,
        top_up.payment_intent_id,
        amount_cents=remaining_cents,
        key=f"refund-topup:{top_up.pk}:{remaining_cents}",
    )
