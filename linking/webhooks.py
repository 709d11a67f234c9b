"""The platforms' doors: a signed update is stored and passed on, and nothing else happens in the request (L18)."""

from __future__ import annotations

import logging

from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from linking import platforms, tasks
from linking.platforms.base import MAX_BODY_BYTES, Forged, Heard, Knock, Unreadable

log = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def door(request: HttpRequest, platform: str, slug: str) -> HttpResponse:
    adapter = platforms.behind(platform, slug)
    if adapter is None:
        raise Http404
    if _is_too_long(request):
        return _refusal(413, "too_large", "The body is larger than an update can be.")
    knock = Knock(headers={name.lower(): value for name, value in request.headers.items()}, body=request.body)
    try:
        adapter.verify(knock)
    except Forged:
        return _refusal(401, "unauthenticated", "The request bears no valid proof.")
    if request.content_type not in adapter.door_types:
        wanted = " or ".join(adapter.door_types)
        return _refusal(415, "unsupported_media_type", f"An update of {platform} is {wanted}.")
    try:
        heard = adapter.hear(knock)
    except Unreadable:
        return _unreadable(platform)
    return _stored(platform, adapter.bot_account, heard)


def _is_too_long(request: HttpRequest) -> bool:
    """By its own word before it is read, or else by what came."""
    declared = str(request.META.get("CONTENT_LENGTH") or "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        return True
    return len(request.body) > MAX_BODY_BYTES


def _stored(platform: str, bot_account: str, heard: Heard) -> HttpResponse:
    if heard.incoming is not None:
        try:
            tasks.receive(platform, bot_account, heard.incoming)
        except DatabaseError as problem:
            why = getattr(problem.__cause__, "sqlstate", None) or type(problem).__name__
            log.warning("the inbox is unreachable (%s); %s is asked to send again", why, platform)
            return _refusal(503, "unavailable", "Please send it again.")
        except Unreadable:
            return _unreadable(platform)
    return JsonResponse(heard.answer or {})


def _unreadable(platform: str) -> HttpResponse:
    log.warning("a signed request of %s cannot be read", platform)
    return _refusal(400, "invalid_request", "This is no update.")


def _refusal(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
