"""The platforms' doors: a signed update is stored and passed on, and nothing else happens in the request (L18)."""

from __future__ import annotations

import logging

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

log = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def receive_webhook(request: HttpRequest, platform: str, slug: str) -> HttpResponse:
    adapter = registry.find_adapter_by_slug(platform, slug)
    if adapter is None:
        raise Http404
    if _is_body_too_large(request):
        return _error_response(413, "too_large", "The body is larger than an update can be.")
    knock = WebhookRequest(
        headers={name.lower(): value for name, value in request.headers.items()}, body=request.body
    )
    try:
        adapter.verify_signature(knock)
    except SignatureInvalid:
        return _error_response(401, "unauthenticated", "The request bears no valid proof.")
    if request.content_type not in adapter.webhook_content_types:
        wanted = " or ".join(adapter.webhook_content_types)
        return _error_response(415, "unsupported_media_type", f"An update of {platform} is {wanted}.")
    try:
        heard = adapter.parse_webhook(knock)
    except UpdateMalformed:
        return _malformed_response(platform)
    return _store_and_respond(platform, adapter.bot_account, heard)


def _is_body_too_large(request: HttpRequest) -> bool:
    """By its own word before it is read, or else by what came."""
    declared = str(request.META.get("CONTENT_LENGTH") or "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        return True
    return len(request.body) > MAX_BODY_BYTES


def _store_and_respond(platform: str, bot_account: str, heard: WebhookResult) -> HttpResponse:
    if heard.incoming is not None:
        try:
            tasks.receive_update(platform, bot_account, heard.incoming)
        except DatabaseError as problem:
            why = getattr(problem.__cause__, "sqlstate", None) or type(problem).__name__
            log.warning("the inbox is unreachable (%s); %s is asked to send again", why, platform)
            return _error_response(503, "unavailable", "Please send it again.")
        except UpdateMalformed:
            return _malformed_response(platform)
    return JsonResponse(heard.answer or {})


def _malformed_response(platform: str) -> HttpResponse:
    log.warning("a signed request of %s cannot be read", platform)
    return _error_response(400, "invalid_request", "This is no update.")


def _error_response(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
