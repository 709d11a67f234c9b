"""Top-ups that nobody told us the end of: Stripe repeats itself for three days, then it must be asked (B14.7)."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from billing.errors import PaymentServiceError
from billing.models import TopUp
from billing.stripe import api_client, checkout_api, payment_api
from billing.top_ups import auto_top_ups, purchases

logger = logging.getLogger(__name__)
RECONCILE_AFTER = timedelta(hours=2)  # a page is open for one
RECONCILE_UNTIL = timedelta(days=40)  # what Stripe has no word about after this, it will have none


def reconcile_open_top_ups() -> int:
    """How many were asked about."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    now = timezone.now()
    waiting = TopUp.objects.filter(
        state__in=TopUp.UNFINISHED, created_at__lt=now - RECONCILE_AFTER, created_at__gt=now - RECONCILE_UNTIL
    )
    asked = list(waiting.select_related("account"))
    for top_up in asked:
        try:
            _reconcile_top_up(top_up)
        except PaymentServiceError as problem:
            logger.warning("Top-up %s stays open: %s.", top_up.pk, type(problem).__name__)
    return len(asked)


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
        purchases.move_top_up(top_up.pk, purchases.TopUpState.EXPIRED)  # its page was never shown to anybody
    else:
        session = checkout_api.get_checkout(deadline, top_up.checkout_session_id)
        if session is not None and session.status == "complete":
            purchases.fulfil_checkout(session)
        elif session is None or session.status == "expired":
            purchases.move_top_up(top_up.pk, purchases.TopUpState.EXPIRED, checkout_url="")
