"""Stripe for a test: the fake, the settings that lead to it, and its webhooks brought to our own door.

Import the fixture `stripe`; what the fake can be told to do stands in `tests/stripe_fake`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client, override_settings
from stripe import HTTPClient

from billing.models import StripeEvent
from billing.stripe import event_handlers
from tests import stripe_fake
from tests.stripe_fake import Fake

WEBHOOK = "/api/v1/billing/stripe/webhook"


@pytest.fixture
def stripe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Payments are on, and the SDK wastes no time before it tries again."""
    monkeypatch.setattr(HTTPClient, "INITIAL_DELAY", 0.005)
    monkeypatch.setattr(HTTPClient, "MAX_DELAY", 0.005)
    with (
        stripe_fake.running() as fake,
        override_settings(
            STRIPE_SECRET_KEY=stripe_fake.SECRET_KEY,
            STRIPE_WEBHOOK_SECRETS=[stripe_fake.WEBHOOK_SECRET],
            STRIPE_API_BASE=fake.address,
        ),
    ):
        fake.webhooks.post = post_webhook
        yield fake


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
