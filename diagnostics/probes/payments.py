"""Does the payment gateway take our key, and does it know where to tell us what happened (D17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from django.conf import settings

from diagnostics.probes.asking import ask, judged
from diagnostics.probes.running import Finding, Probe

WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"
OFF = Finding(status="skip", detail="not configured: everything but paying works")


def stripe() -> Finding:
    """Its balance: read for nothing, and only with a key that is valid."""
    if not settings.STRIPE_SECRET_KEY:
        return OFF
    return judged(ask(f"{settings.STRIPE_API_BASE}/v1/balance", _key()), variable="STRIPE_SECRET_KEY")


def stripe_webhook() -> Finding:
    if not settings.STRIPE_SECRET_KEY:
        return OFF
    answer = ask(f"{settings.STRIPE_API_BASE}/v1/webhook_endpoints?limit=100", _key())
    if not answer.well:
        return Finding(status="skip", detail="the list of webhooks could not be read")
    ours = f"{settings.SITE_URL}{WEBHOOK_PATH}"
    if ours in _enabled(answer.body):
        return Finding(detail="registered")
    return Finding(
        status="warn",
        detail="Stripe does not know this site's webhook, so nothing bought arrives",
        next_step=f"Add an endpoint for {ours} in Stripe's dashboard.",
    )


def _enabled(body: Mapping[str, object]) -> Iterator[object]:
    listed = body.get("data")
    for endpoint in listed if isinstance(listed, list) else ():
        if isinstance(endpoint, dict) and endpoint.get("status") == "enabled":
            yield endpoint.get("url")


def _key() -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.STRIPE_SECRET_KEY}"}


CHECKS: Mapping[str, Probe] = {"payments.stripe": stripe}
WEBHOOKS: Mapping[str, Probe] = {"webhooks.stripe": stripe_webhook}
