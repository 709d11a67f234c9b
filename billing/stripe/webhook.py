"""Receive Stripe's webhook: verify the signature over the raw body, store the event and answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import stripe
import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from billing.errors import InvalidWebhookSignature
from billing.stripe import webhook_events
from billing.stripe.objects import WebhookEvent

SIGNATURE_TOLERANCE_SECONDS = 300


def verify_webhook(body: bytes, header: str, secrets: Sequence[str]) -> WebhookEvent:
    """Verify the body with any of the secrets; there are two while one replaces the other."""
    if not any(_has_valid_signature(body, header, secret) for secret in secrets):
        raise InvalidWebhookSignature
    try:
        payload = msgspec.json.decode(body, type=dict[str, object])
        return WebhookEvent(
            id=msgspec.convert(payload["id"], str),
            type=msgspec.convert(payload["type"], str),
            api_version=msgspec.convert(payload.get("api_version") or "", str),
            livemode=msgspec.convert(payload["livemode"], bool),
            created_at=datetime.fromtimestamp(msgspec.convert(payload["created"], int), UTC),
            payload=payload,
        )
    except (KeyError, ValueError, OverflowError) as problem:  # msgspec errors are ValueErrors
        raise InvalidWebhookSignature from problem


def _has_valid_signature(body: bytes, header: str, secret: str) -> bool:
    try:
        return bool(
            stripe.WebhookSignature.verify_header(body, header, secret, tolerance=SIGNATURE_TOLERANCE_SECONDS)
        )
    except (stripe.SignatureVerificationError, ValueError):  # ValueError if the body is not text
        return False


log = structlog.get_logger(__name__)
MAX_BODY_BYTES = 512 * 1024


@csrf_exempt
@never_cache
@require_POST
def stripe_webhook(request: HttpRequest) -> HttpResponse:
    """Store the event. A task applies it, so that the answer waits neither for Stripe's API nor for other work."""
    if not settings.STRIPE_WEBHOOK_SECRETS or not settings.STRIPE_SECRET_KEY:
        return _refuse(503, "payments_off", "Payments are not set up.")
    body = _read_body(request)
    if body is None:
        return _refuse(413, "too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        signature = request.headers.get("Stripe-Signature", "")
        event = verify_webhook(body, signature, settings.STRIPE_WEBHOOK_SECRETS)
    except InvalidWebhookSignature:
        log.warning("stripe_webhook_signature_invalid", body_bytes=len(body))
        return _refuse(400, "invalid_request", "The signature is invalid.")
    with transaction.atomic():
        pk = webhook_events.store_event(event)
        if pk is not None:
            transaction.on_commit(partial(webhook_events.enqueue_event, pk))
    return JsonResponse({"received": True})


def _read_body(request: HttpRequest) -> bytes | None:
    """Return the body, or None if it is too large. The declared length is checked before reading."""
    try:
        if int(request.headers.get("Content-Length") or 0) > MAX_BODY_BYTES:
            return None
        body = request.body
    except (RequestDataTooBig, ValueError):
        return None
    except UnreadablePostError:
        return b""
    return body if len(body) <= MAX_BODY_BYTES else None


def _refuse(status: int, code: str, message: str) -> HttpResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)


# --- OpenAPI ---

WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"
_ERROR_SCHEMA = {"$ref": "#/components/schemas/Error"}


def add_webhook_to_schema(
    result: dict[str, Any], generator: object, request: object, public: bool
) -> dict[str, Any]:
    result["paths"][WEBHOOK_PATH] = {
        "post": {
            "operationId": "receive_stripe_event",
            "summary": "Receive a Stripe event",
            "description": "For Stripe only, authenticated by the signature over the raw body.",
            "tags": ["billing"],
            "security": [{}],
            "parameters": [
                {"in": "header", "name": "Stripe-Signature", "required": True, "schema": {"type": "string"}}
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "responses": {
                "200": _describe_response("Stored, now or earlier.", _RECEIVED_SCHEMA),
                "400": _describe_response(
                    "The signature is invalid or too old, or the body is unreadable.", _ERROR_SCHEMA
                ),
                "405": {"description": "Method not allowed."},
                "413": _describe_response("More than 512 KiB.", _ERROR_SCHEMA),
                "503": _describe_response("Payments are not set up.", _ERROR_SCHEMA),
            },
        }
    }
    return result


_RECEIVED_SCHEMA = {
    "type": "object",
    "properties": {"received": {"type": "boolean"}},
    "required": ["received"],
}


def _describe_response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
