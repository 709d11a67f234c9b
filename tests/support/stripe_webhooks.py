"""Webhooks of the fake Stripe: brought to our endpoint, and applied as workers do."""

from __future__ import annotations

from django.test import Client

from billing.models import StripeEvent
from billing.stripe import event_handlers
from tests.stripe_fake import Fake

WEBHOOK = "/api/v1/billing/stripe/webhook"


def settle(fake: Fake) -> None:
    """What waits at the fake is delivered and applied, and what that causes too."""
    while fake.webhooks.waiting():
        fake.webhooks.deliver()
        apply_received()


def apply_received() -> None:
    """As workers would, in the order of arrival."""
    waiting = StripeEvent.objects.filter(state=StripeEvent.State.RECEIVED).order_by("pk")
    for pk in waiting.values_list("pk", flat=True):
        event_handlers.apply_stripe_event(pk)


def post_webhook(body: bytes, signature: str) -> int:
    """By the real door, as Stripe would."""
    sent = Client().post(
        WEBHOOK, data=body, content_type="application/json", headers={"Stripe-Signature": signature}
    )
    return sent.status_code
