"""Receive platform webhooks: verify the signature, store the update and enqueue its handling."""

from __future__ import annotations

import structlog
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from linking import tasks
from linking.platforms import registry
from linking.platforms.base import (
    MAX_BODY_BYTES,
    SignatureInvalid,
    UpdateMalformed,
    WebhookRequest,
    WebhookResult,
)

log = structlog.get_logger(__name__)


@csrf_exempt
@require_POST
def receive_webhook(request: HttpRequest, platform: str, slug: str) -> HttpResponse:
    adapter = registry.find_adapter_by_slug(platform, slug)
    if adapter is None:
        raise Http404
    if _is_body_too_large(request):
        return _error_response(413, "too_large", "The request body is too large.")
    webhook = WebhookRequest(
        headers={name.lower(): value for name, value in request.headers.items()}, body=request.body
    )
    try:
        adapter.verify_signature(webhook)
    except SignatureInvalid:
        return _error_response(401, "unauthenticated", "The signature is missing or invalid.")
    if request.content_type not in adapter.webhook_content_types:
        accepted = " or ".join(adapter.webhook_content_types)
        return _error_response(415, "unsupported_media_type", f"The content type must be {accepted}.")
    try:
        result = adapter.parse_webhook(webhook)
    except UpdateMalformed:
        return _malformed_response(platform)
    return _store_and_respond(platform, adapter.bot_account, result)


def _is_body_too_large(request: HttpRequest) -> bool:
    """Check the declared length before the body is read, and the actual length after."""
    declared = str(request.META.get("CONTENT_LENGTH") or "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        return True
    return len(request.body) > MAX_BODY_BYTES


def _store_and_respond(platform: str, bot_account: str, result: WebhookResult) -> HttpResponse:
    if result.incoming is not None:
        try:
            tasks.receive_update(platform, bot_account, result.incoming)
        except DatabaseError as problem:
            error = getattr(problem.__cause__, "sqlstate", None) or type(problem).__name__
            log.warning("update_store_failed", platform=platform, error=error)
            return _error_response(503, "unavailable", "The update could not be stored. Send it again.")
        except UpdateMalformed:
            return _malformed_response(platform)
    return JsonResponse(result.answer or {})


def _malformed_response(platform: str) -> HttpResponse:
    log.warning("update_malformed", platform=platform)
    return _error_response(400, "invalid_request", "The body is not a valid update.")


def _error_response(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
