"""Ask Stripe about top-ups whose outcome we never heard, because it repeats webhooks for three days only."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.utils import timezone

from billing.errors import PaymentServiceError
from billing.models import TopUp
from billing.stripe import api_client, checkout_api, payment_api
from billing.top_ups import auto_top_ups, purchases

log = structlog.get_logger(__name__)
RECONCILE_AFTER = timedelta(hours=2)  # a checkout is open for one hour
RECONCILE_UNTIL = timedelta(days=40)  # after this Stripe will have no outcome either


def reconcile_open_top_ups() -> int:
    """Reconcile unfinished top-ups and return how many were checked."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    now = timezone.now()
    unfinished = TopUp.objects.unfinished().filter(
        created_at__lt=now - RECONCILE_AFTER, created_at__gt=now - RECONCILE_UNTIL
    )
    top_ups = list(unfinished.select_related("account"))
    for top_up in top_ups:
        try:
            _reconcile_top_up(top_up)
        except PaymentServiceError as problem:
            log.warning("top_up_reconcile_failed", top_up_id=str(top_up.pk), error=type(problem).__name__)
    return len(top_ups)


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
        purchases.move_top_up(top_up.pk, purchases.TopUpState.EXPIRED)  # its checkout was never created
    else:
        session = checkout_api.get_checkout(deadline, top_up.checkout_session_id)
        if session is not None and session.status == "complete":
            purchases.fulfil_checkout(session)
        elif session is None or session.status == "expired":
            purchases.move_top_up(top_up.pk, purchases.TopUpState.EXPIRED, checkout_url="")
