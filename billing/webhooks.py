"""Stripe's door: whoever signs with one of the secrets is Stripe. What he says is stored, and answered at once (B14.1, B14.2)."""

from __future__ import annotations

import logging
from functools import partial

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from billing import gateway, inbox
from billing.errors import BadSignature

logger = logging.getLogger(__name__)
MOST_BYTES = 512 * 1024


@csrf_exempt
@never_cache
@require_POST
def stripe_webhook(request: HttpRequest) -> HttpResponse:
    """No call of Stripe's and no business here: that is the task's."""
    if not settings.STRIPE_WEBHOOK_SECRETS or not settings.STRIPE_SECRET_KEY:
        return _refused(
            503, "payments_off", "Payments are not set up: what Stripe says could not be looked up."
        )
    body = _body(request)
    if body is None:
        return _refused(413, "too_large", f"More than {MOST_BYTES} bytes.")
    try:
        signature = request.headers.get("Stripe-Signature", "")
        event = gateway.verified(body, signature, settings.STRIPE_WEBHOOK_SECRETS)
    except BadSignature:
        logger.warning("Something at Stripe's door was not Stripe's: %s bytes.", len(body))
        return _refused(400, "invalid_request", "The signature does not fit.")
    with transaction.atomic():
        pk = inbox.store(event)
        if pk is not None:
            transaction.on_commit(partial(inbox.have_it_applied, pk))
    return JsonResponse({"received": True})


def _body(request: HttpRequest) -> bytes | None:
    """None when it is too long; its declared length is looked at before it is read."""
    try:
        if int(request.headers.get("Content-Length") or 0) > MOST_BYTES:
            return None
        body = request.body
    except (RequestDataTooBig, ValueError):
        return None
    except UnreadablePostError:
        return b""
    return body if len(body) <= MOST_BYTES else None


def _refused(status: int, code: str, message: str) -> HttpResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
