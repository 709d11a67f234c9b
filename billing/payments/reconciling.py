"""Top-ups that nobody told us the end of: Stripe repeats itself for three days, then it must be asked (B14.7)."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from billing import gateway
from billing.errors import GatewayError
from billing.models import TopUp
from billing.payments import automatic, buying, states

logger = logging.getLogger(__name__)
SETTLED_BY_NOW = timedelta(hours=2)  # a page is open for one
FORGOTTEN = timedelta(days=40)  # what Stripe has no word about after this, it will have none


def ask_about_open_ones() -> int:
    """How many were asked about."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    now = timezone.now()
    waiting = TopUp.objects.filter(
        state__in=TopUp.UNFINISHED, created_at__lt=now - SETTLED_BY_NOW, created_at__gt=now - FORGOTTEN
    )
    asked = list(waiting.select_related("account"))
    for top_up in asked:
        try:
            _ask(top_up)
        except GatewayError as problem:
            logger.warning("Top-up %s stays open: %s.", top_up.pk, type(problem).__name__)
    return len(asked)


def _ask(top_up: TopUp) -> None:
    deadline = gateway.in_task()
    if top_up.kind == TopUp.Kind.AUTO:
        intent = gateway.get_intent(deadline, top_up.payment_intent_id) if top_up.payment_intent_id else None
        if intent is not None:
            automatic.intent_moved(intent)
    elif top_up.checkout_session_id is None:
        states.move(top_up.pk, states.State.EXPIRED)  # its page was never shown to anybody
    else:
        session = gateway.get_checkout(deadline, top_up.checkout_session_id)
        if session is not None and session.status == "complete":
            buying.fulfil(session)
        elif session is None or session.status == "expired":
            states.move(top_up.pk, states.State.EXPIRED, checkout_url="")
