"""Payments that are taken back: refunds and disputes; the ledger follows what Stripe says now, in any order (B10.5, B10.6)."""

from __future__ import annotations

from django.db import transaction

from billing import gateway, ledger, notices
from billing.errors import GatewayDown, GatewayError, GatewayRefusal
from billing.models import LedgerEntry, TopUp
from billing.payments import automatic, buying, states

Kind = LedgerEntry.Kind


class NotYetPaid(GatewayDown):
    """What is taken back was not credited yet: its own event is on the way, and then this one is tried again."""


def follow_refunds(intent_id: str, deadline: gateway.Deadline) -> bool:
    """All refunds of one payment. False when the payment bought no credit."""
    top_up = _bought_by(intent_id, deadline)
    if top_up is None:
        return False
    with transaction.atomic():
        book = _Book(top_up)  # before Stripe is asked: what was heard first must not be written last (B14.4)
        for refund in reversed(gateway.list_refunds(deadline, intent_id)):  # Stripe lists the newest first
            if refund.takes_money:
                book.reverse(f"refund:{refund.id}", refund.amount_cents, "Refund")
            elif refund.status in ("failed", "canceled"):
                book.reinstate(f"refund:{refund.id}", f"refund-failed:{refund.id}", "Refund failed")
        book.close()
    return True


def follow_dispute(dispute: gateway.Dispute, deadline: gateway.Deadline, *, reinstated: bool) -> bool:
    """Taken while it is fought over, back when it is won. False when nothing of ours was bought."""
    intent_id = dispute.payment_intent_id or gateway.get_charges_intent_id(deadline, dispute.charge_id)
    top_up = _bought_by(intent_id, deadline) if intent_id else None
    if top_up is None:
        return False
    with transaction.atomic():
        book = _Book(top_up)
        dispute = gateway.get_dispute(deadline, dispute.id) or dispute  # nobody else follows it now (B14.4)
        if reinstated or dispute.status == "won":
            book.reinstate(f"dispute:{dispute.id}", f"dispute-won:{dispute.id}", "Dispute won")
        elif not dispute.is_warning:
            book.reverse(f"dispute:{dispute.id}", dispute.amount_cents, "Disputed payment")
            _stop_charging(top_up, dispute.id)
        book.close()
    return True


def _stop_charging(top_up: TopUp, dispute_id: str) -> None:
    """At the first word of it: what its owner switches on again afterwards stays on."""
    is_news = notices.post(
        top_up.account.user_id,
        "payment_disputed",
        dedupe_key=f"dispute:{dispute_id}",
        data={"amount_cents": top_up.amount_cents},
        mail=True,
    )
    if is_news:
        automatic.switch_off(top_up.account_id, "dispute")


def _bought_by(intent_id: str, deadline: gateway.Deadline) -> TopUp | None:
    """By its payment; before we heard of that, by what stands in the payment."""
    known = TopUp.objects.select_related("account").filter(payment_intent_id=intent_id).first()
    if known is None:
        intent = gateway.get_intent(deadline, intent_id)
        known = buying.find(intent.metadata.get("top_up", "")) if intent else None
    return known


class _Book:
    """One top-up, locked, and what was taken back of it so far."""

    def __init__(self, top_up: TopUp) -> None:
        self._top_up = TopUp.objects.select_for_update().select_related("account").get(pk=top_up.pk)
        if self._top_up.state not in (*states.SETTLED, states.State.REVIEW):
            raise NotYetPaid
        moved = LedgerEntry.objects.filter(
            account=self._top_up.account,
            reference=str(top_up.pk),
            kind__in=[Kind.REVERSAL, Kind.REINSTATEMENT],
        ).exclude(idempotency_key__endswith=":debt")
        self._entries = {entry.idempotency_key: entry for entry in moved}

    def _reversed_cents(self) -> int:
        return sum(
            _cents(entry) if entry.kind == Kind.REVERSAL else -_cents(entry)
            for entry in self._entries.values()
        )

    def reverse(self, key: str, cents: int, reason: str) -> None:
        """At most what is left of the top-up; nothing was credited for one under review."""
        cents = min(cents, self._top_up.amount_cents - self._reversed_cents())
        if key not in self._entries and cents > 0 and self._top_up.state != states.State.REVIEW:
            self._entries[key] = ledger.reverse(
                self._top_up.account.user_id, cents, key=key, reason=reason, reference=str(self._top_up.pk)
            )

    def reinstate(self, reversal: str, key: str, reason: str) -> None:
        """Only what was taken."""
        taken = self._entries.get(reversal)
        if taken is not None and key not in self._entries:
            self._entries[key] = ledger.reinstate(
                self._top_up.account.user_id,
                _cents(taken),
                key=key,
                reason=reason,
                reference=str(self._top_up.pk),
            )

    def close(self) -> None:
        states.settle(self._top_up, self._reversed_cents())


def _cents(entry: LedgerEntry) -> int:
    """What was asked for, whether it moved the balance or the debt."""
    return abs(entry.amount_cents) + abs(entry.debt_delta_cents)


def refund_top_up(top_up: TopUp) -> None:
    """By staff: what was not taken back yet; the ledger follows by webhook (B10.7)."""
    if top_up.state not in (states.State.PAID, states.State.PARTLY_REVERSED) or not top_up.payment_intent_id:
        raise GatewayRefusal("Only a paid top-up can be refunded.")
    deadline = gateway.in_request()
    given = [one for one in gateway.list_refunds(deadline, top_up.payment_intent_id) if one.takes_money]
    left = top_up.amount_cents - sum(one.amount_cents for one in given)
    if left <= 0:
        raise GatewayError("Stripe has refunded all of it already.")
    gateway.refund(
        deadline, top_up.payment_intent_id, amount_cents=left, key=f"refund-topup:{top_up.pk}:{left}"
    )
