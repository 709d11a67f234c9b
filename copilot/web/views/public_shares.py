"""What strangers open: the page of a share, its files, its lock; whatever is not there is one and the same 404 (S11, S12)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Concatenate, ParamSpec
from urllib.parse import quote
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt

from config.core.errors import NotFound, PayloadTooLarge, RequestRefused, StorageUnavailable, TooManyRequests
from copilot import metrics
from copilot.files import downloads, html_preview, zip_stream
from copilot.models import Share
from copilot.sharing import access, continuation
from copilot.web import i18n, share_page

SHARE_KEY_COOKIE = "share_key"
PUBLIC_SHARE_HEADERS = {
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Referrer-Policy": "no-referrer",
}

P = ParamSpec("P")
ShareView = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def public_share_view(*methods: str) -> Callable[[ShareView[P]], ShareView[P]]:
    """The headers of every answer, and one form for every refusal; other methods find nothing."""

    def dressed(view: ShareView[P]) -> ShareView[P]:
        @wraps(view)
        def answer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                if request.method not in methods:
                    raise NotFound
                response = view(request, *args, **kwargs)
            except TooManyRequests as problem:
                response = _render_refusal(request, problem, "copilot/share/busy.html")
            except StorageUnavailable as problem:
                response = _render_refusal(request, problem, "copilot/share/away.html")
            except PayloadTooLarge as problem:
                response = render(request, "copilot/share/too_large.html", {"problem": problem}, status=413)
            except RequestRefused:
                response = HttpResponse(
                    _render_not_found(get_language(), request.COOKIES.get("theme", "")), status=404
                )
            for name, value in PUBLIC_SHARE_HEADERS.items():
                response[name] = value
            response.setdefault("Cache-Control", "private, no-store")  # files say it themselves
            return response

        return answer

    return dressed


def _render_not_found(language: str | None, theme: str) -> str:
    return _render_not_found_once(language, theme if theme in ("dark", "light") else "")


@cache
def _render_not_found_once(language: str | None, theme: str) -> str:
    """Painted once for all who ask: a guesser costs us nothing, and learns nothing from how long it takes."""
    cookies = {"COOKIES": {"theme": theme}}
    return render_to_string("copilot/share/gone.html", {"request": cookies})


def _render_refusal(request: HttpRequest, problem: RequestRefused, template: str) -> HttpResponse:
    response = render(request, template, status=problem.status)
    response["Retry-After"] = str(problem.retry_after_seconds)
    return response


def _get_client_address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))


def _get_share_key(request: HttpRequest) -> str:
    return request.COOKIES.get(SHARE_KEY_COOKIE, "")


@csrf_exempt
@public_share_view("GET", "HEAD")
def show_share(request: HttpRequest, token: UUID) -> HttpResponse:
    access.check_rate_limit(_get_client_address(request), "page")
    found = access.find_live_share(token)
    if found is None:
        metrics.share_hits.labels(door="page", outcome="refused").inc()
        raise NotFound
    if not access.is_unlocked(found, _get_share_key(request)):
        return _render_password_form(request, token)
    access.record_view(found, _get_client_address(request))
    metrics.share_hits.labels(door="page", outcome="served").inc()
    return render(request, "copilot/share/share.html", _build_share_context(found))


def _build_share_context(found: Share) -> dict[str, object]:
    payload = access.load_payload(found)
    files = share_page.ShareFiles.from_files(found.token, access.list_shared_files(found))
    subject = quote(f"Report of share {found.pk}")
    return {
        "title": payload.title or _("Shared conversation"),
        "kind": payload.kind,
        "author": found.options.get("author", ""),
        "shared_at": found.created_at,
        "transcript": share_page.render_transcript(found, payload, files),
        "cards": list(files.cards.values()),
        "zip": reverse("share_zip", args=[found.token]) if len(files.cards) > 1 else "",
        "onward": reverse("share_continue", args=[found.token]) if continuation.can_continue(found) else "",
        "report": f"mailto:{settings.REPORT_EMAIL}?subject={subject}",
        "site": settings.SITE_URL,
        "token": found.token,
        "render_max": settings.ARTIFACT_RENDER_MAX,
    }


@csrf_exempt
@public_share_view("GET", "HEAD")
def download_share_file(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponseBase:
    """`?download=1` saves it; otherwise it is shown where that is harmless (S7)."""
    access.check_rate_limit(_get_client_address(request), "file")
    file = access.find_shared_file(token, file_id, _get_share_key(request))
    if file is None:
        metrics.share_hits.labels(door="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="file", outcome="served").inc()
    return downloads.build_download_response(
        request, file, inline=request.GET.get("download") != "1", public=True
    )


@csrf_exempt
@public_share_view("GET")
def render_share_file(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponse:
    """A shared document in a frame, without an origin: the rights are those of its download (S14)."""
    access.check_rate_limit(_get_client_address(request), "file")
    file = (
        access.find_shared_file(token, file_id, _get_share_key(request))
        if html_preview.is_frame_request(request)
        else None
    )
    if file is None:
        metrics.share_hits.labels(door="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="file", outcome="served").inc()
    return html_preview.render_html_file(request, file)


@csrf_exempt
@public_share_view("GET", "HEAD")
def download_share_zip(request: HttpRequest, token: UUID) -> HttpResponseBase:
    """All files of a share (S13)."""
    access.check_rate_limit(_get_client_address(request), "zip")
    found = access.find_live_share(token)
    if found is None or not access.is_unlocked(found, _get_share_key(request)):
        metrics.share_hits.labels(door="zip", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="zip", outcome="served").inc()
    title = access.load_payload(found).title or "shared"
    return zip_stream.build_zip_response(request, access.list_shared_files(found), title=title, public=True)


@public_share_view("GET", "POST")
def continue_share(request: HttpRequest, token: UUID) -> HttpResponse:
    """Into the reader's own account, if the owner allows it; asked on a page of its own, so that a share is the same for all."""
    access.check_rate_limit(_get_client_address(request), "page")
    found = access.find_live_share(token)
    if (
        found is None
        or not access.is_unlocked(found, _get_share_key(request))
        or not continuation.can_continue(found)
    ):
        raise NotFound
    if not isinstance(request.user, User):
        return redirect_to_login(request.path)
    context = {"title": access.load_payload(found).title or _("Shared conversation"), "token": token}
    if request.method == "GET":
        return render(request, "copilot/share/continue.html", context)
    try:
        session_id = str(continuation.import_share(request.user.pk, found).pk)
    except RequestRefused as problem:
        session_id = str(problem.details.get("session_id", ""))  # taken in before: it goes on there
        if not session_id:
            context |= {"problem": i18n.translate_refusal(problem)}
            return render(request, "copilot/share/continue.html", context, status=problem.status)
    return HttpResponseRedirect(reverse("chat_session", args=[session_id]), status=303)


@public_share_view("POST")
def unlock_share(request: HttpRequest, token: UUID) -> HttpResponse:
    access.check_rate_limit(
        _get_client_address(request), "page"
    )  # each try costs a hash, whatever tokens are made up for it
    try:
        key = access.unlock_share(token, request.POST.get("password", ""), _get_client_address(request))
    except TooManyRequests as problem:
        response = _render_password_form(
            request, token, _("Too many tries. Please wait a while."), problem.status
        )
        response["Retry-After"] = str(problem.retry_after_seconds)
        return response
    if key is None:
        found = access.find_live_share(token)
        if found is None or not found.password_hash:
            raise NotFound
        return _render_password_form(request, token, _("That is not the password."), 403)
    response = HttpResponseRedirect(reverse("share", args=[token]), status=303)
    response.set_cookie(
        SHARE_KEY_COOKIE,
        key,
        max_age=access.get_key_lifetime_seconds(),
        path=reverse("share", args=[token]),
        secure=True,
        httponly=True,
        samesite="Lax",
    )
    return response


def _render_password_form(
    request: HttpRequest, token: UUID, problem: str = "", status: int = 200
) -> HttpResponse:
    """Branding and a field; nothing about what is behind it."""
    context = {"token": token, "problem": problem, "site": settings.SITE_URL}
    return render(request, "copilot/share/locked.html", context, status=status)


@csrf_exempt
@public_share_view()
def show_share_not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Every other address below /share/, without a query."""
    raise NotFound
