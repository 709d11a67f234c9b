"""Deliver webhooks of the fake Stripe to our endpoint and apply them as workers do."""

from __future__ import annotations

from django.test import Client

from billing.models import StripeEvent
from billing.stripe import event_handlers
from tests.stripe_fake import Fake

WEBHOOK = "/api/v1/billing/stripe/webhook"


def settle(fake: Fake) -> None:
    """Deliver and apply all pending webhooks, including those that this causes."""
    while fake.webhooks.waiting():
        fake.webhooks.deliver()
        apply_received()


def apply_received() -> None:
    """Apply events in the order of arrival, as workers do."""
    waiting = StripeEvent.objects.filter(state=StripeEvent.State.RECEIVED).order_by("pk")
    for pk in waiting.values_list("pk", flat=True):
        event_handlers.apply_stripe_event(pk)


def post_webhook(body: bytes, signature: str) -> int:
    """Post to the real endpoint, as Stripe does."""
    sent = Client().post(
        WEBHOOK, data=body, content_type="application/json", headers={"Stripe-Signature": signature}
    )
    return sent.status_code
