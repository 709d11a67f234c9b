"""Payments that are taken back: refunds and disputes; the ledger follows what Stripe says now, in any order (B10.5, B10.6)."""

from __future__ import annotations

from django.db import transaction

from billing import ledger, notices
from billing.errors import PaymentServiceError, PaymentServiceRefusal, PaymentServiceUnavailable
from billing.models import LedgerEntry, TopUp
from billing.stripe import api_client, objects, payment_api
from billing.top_ups import auto_top_ups, purchases

EntryKind = LedgerEntry.Kind


class TopUpNotYetPaid(PaymentServiceUnavailable):
    """What is taken back was not credited yet: its own event is on the way, and then this one is tried again."""


def apply_refunds(intent_id: str, deadline: api_client.StripeDeadline) -> bool:
    """All refunds of one payment. False when the payment bought no credit."""
    top_up = _find_paid_top_up(intent_id, deadline)
    if top_up is None:
        return False
    with transaction.atomic():
        book = _TopUpReversals(
            top_up
        )  # before Stripe is asked: what was heard first must not be written last (B14.4)
        for refund in reversed(
            payment_api.list_refunds(deadline, intent_id)
        ):  # Stripe lists the newest first
            if refund.takes_money:
                book.reverse(f"refund:{refund.id}", refund.amount_cents, "Refund")
            elif refund.status in ("failed", "canceled"):
                book.reinstate(f"refund:{refund.id}", f"refund-failed:{refund.id}", "Refund failed")
        book.save_state()
    return True


def apply_dispute(
    dispute: objects.StripeDispute, deadline: api_client.StripeDeadline, *, reinstated: bool
) -> bool:
    """Taken while it is fought over, back when it is won. False when nothing of ours was bought."""
    intent_id = dispute.payment_intent_id or payment_api.get_charge_payment_intent_id(
        deadline, dispute.charge_id
    )
    top_up = _find_paid_top_up(intent_id, deadline) if intent_id else None
    if top_up is None:
        return False
    with transaction.atomic():
        book = _TopUpReversals(top_up)
        dispute = (
            payment_api.get_dispute(deadline, dispute.id) or dispute
        )  # nobody else follows it now (B14.4)
        if reinstated or dispute.status == "won":
            book.reinstate(f"dispute:{dispute.id}", f"dispute-won:{dispute.id}", "Dispute won")
        elif not dispute.is_warning:
            book.reverse(f"dispute:{dispute.id}", dispute.amount_cents, "Disputed payment")
            _disable_after_dispute(top_up, dispute.id)
        book.save_state()
    return True


def _disable_after_dispute(top_up: TopUp, dispute_id: str) -> None:
    """At the first word of it: what its owner switches on again afterwards stays on."""
    is_news = notices.post_notice(
        top_up.account.user_id,
        "payment_disputed",
        dedupe_key=f"dispute:{dispute_id}",
        data={"amount_cents": top_up.amount_cents},
        mail=True,
    )
    if is_news:
        auto_top_ups.disable_auto_top_up(top_up.account_id, "dispute")


def _find_paid_top_up(intent_id: str, deadline: api_client.StripeDeadline) -> TopUp | None:
    """By its payment; before we heard of that, by what stands in the payment."""
    known = TopUp.objects.select_related("account").filter(payment_intent_id=intent_id).first()
    if known is None:
        intent = payment_api.get_payment_intent(deadline, intent_id)
        known = purchases.find_top_up(intent.metadata.get("top_up", "")) if intent else None
    return known


class _TopUpReversals:
    """One top-up, locked, and what was taken back of it so far."""

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
        """At most what is left of the top-up; nothing was credited for one under review."""
        cents = min(cents, self._top_up.amount_cents - self._compute_reversed_cents())
        if key not in self._entries and cents > 0 and self._top_up.state != purchases.TopUpState.REVIEW:
            self._entries[key] = ledger.reverse_payment(
                self._top_up.account.user_id, cents, key=key, reason=reason, reference=str(self._top_up.pk)
            )

    def reinstate(self, reversal: str, key: str, reason: str) -> None:
        """Only what was taken."""
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
    """What was asked for, whether it moved the balance or the debt."""
    return abs(entry.amount_cents) + abs(entry.debt_delta_cents)


def refund_top_up(top_up: TopUp) -> None:
    """By staff: what was not taken back yet; the ledger follows by webhook (B10.7)."""
    if (
        top_up.state not in (purchases.TopUpState.PAID, purchases.TopUpState.PARTLY_REVERSED)
        or not top_up.payment_intent_id
    ):
        raise PaymentServiceRefusal("Only a paid top-up can be refunded.")
    deadline = api_client.start_request_deadline()
    given = [one for one in payment_api.list_refunds(deadline, top_up.payment_intent_id) if one.takes_money]
    left = top_up.amount_cents - sum(one.amount_cents for one in given)
    if left <= 0:
        raise PaymentServiceError("Stripe has refunded all of it already.")
    payment_api.create_refund(
        deadline, top_up.payment_intent_id, amount_cents=left, key=f"refund-topup:{top_up.pk}:{left}"
    )
