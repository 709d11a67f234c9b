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

from copilot import metrics, published, words
from copilot.errors import NotFound, Refused, StorageUnavailable, TooLarge, TooMany
from copilot.models import Share
from copilot.workspace import continuing, downloads, rendering, visiting, zips

COOKIE = "share_key"
HEADERS = {
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Referrer-Policy": "no-referrer",
}

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def for_strangers(*methods: str) -> Callable[[View[P]], View[P]]:
    """The headers of every answer, and one form for every refusal; other methods find nothing."""

    def dressed(view: View[P]) -> View[P]:
        @wraps(view)
        def answer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                if request.method not in methods:
                    raise NotFound
                response = view(request, *args, **kwargs)
            except TooMany as problem:
                response = _refused(request, problem, "copilot/share/busy.html")
            except StorageUnavailable as problem:
                response = _refused(request, problem, "copilot/share/away.html")
            except TooLarge as problem:
                response = render(request, "copilot/share/too_large.html", {"problem": problem}, status=413)
            except Refused:
                response = HttpResponse(_gone(get_language(), request.COOKIES.get("theme", "")), status=404)
            for name, value in HEADERS.items():
                response[name] = value
            response.setdefault("Cache-Control", "private, no-store")  # files say it themselves
            return response

        return answer

    return dressed


def _gone(language: str | None, theme: str) -> str:
    return _painted(language, theme if theme in ("dark", "light") else "")


@cache
def _painted(language: str | None, theme: str) -> str:
    """Painted once for all who ask: a guesser costs us nothing, and learns nothing from how long it takes."""
    cookies = {"COOKIES": {"theme": theme}}
    return render_to_string("copilot/share/gone.html", {"request": cookies})


def _refused(request: HttpRequest, problem: Refused, template: str) -> HttpResponse:
    response = render(request, template, status=problem.status)
    response["Retry-After"] = str(problem.retry_after_seconds)
    return response


def _address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))


def _key(request: HttpRequest) -> str:
    return request.COOKIES.get(COOKIE, "")


@csrf_exempt
@for_strangers("GET", "HEAD")
def share(request: HttpRequest, token: UUID) -> HttpResponse:
    visiting.admit(_address(request), "page")
    found = visiting.standing(token)
    if found is None:
        metrics.share_hits.labels(door="page", outcome="refused").inc()
        raise NotFound
    if not visiting.is_open(found, _key(request)):
        return _locked(request, token)
    visiting.viewed(found, _address(request))
    metrics.share_hits.labels(door="page", outcome="served").inc()
    return render(request, "copilot/share/share.html", _shown(found))


def _shown(found: Share) -> dict[str, object]:
    payload = visiting.payload_of(found)
    files = published.Files.of(found.token, visiting.files_of(found))
    subject = quote(f"Report of share {found.pk}")
    return {
        "title": payload.title or _("Shared conversation"),
        "kind": payload.kind,
        "author": found.options.get("author", ""),
        "shared_at": found.created_at,
        "transcript": published.transcript(found, payload, files),
        "cards": list(files.cards.values()),
        "zip": reverse("share_zip", args=[found.token]) if len(files.cards) > 1 else "",
        "onward": reverse("share_continue", args=[found.token]) if continuing.is_allowed(found) else "",
        "report": f"mailto:{settings.REPORT_EMAIL}?subject={subject}",
        "site": settings.SITE_URL,
        "token": found.token,
        "render_max": settings.ARTIFACT_RENDER_MAX,
    }


@csrf_exempt
@for_strangers("GET", "HEAD")
def share_file(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponseBase:
    """`?download=1` saves it; otherwise it is shown where that is harmless (S7)."""
    visiting.admit(_address(request), "file")
    file = visiting.file(token, file_id, _key(request))
    if file is None:
        metrics.share_hits.labels(door="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="file", outcome="served").inc()
    return downloads.respond(request, file, inline=request.GET.get("download") != "1", public=True)


@csrf_exempt
@for_strangers("GET")
def share_render(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponse:
    """A shared document in a frame, without an origin: the rights are those of its download (S14)."""
    visiting.admit(_address(request), "file")
    file = visiting.file(token, file_id, _key(request)) if rendering.is_framed(request) else None
    if file is None:
        metrics.share_hits.labels(door="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="file", outcome="served").inc()
    return rendering.file(request, file)


@csrf_exempt
@for_strangers("GET", "HEAD")
def share_zip(request: HttpRequest, token: UUID) -> HttpResponseBase:
    """All files of a share (S13)."""
    visiting.admit(_address(request), "zip")
    found = visiting.standing(token)
    if found is None or not visiting.is_open(found, _key(request)):
        metrics.share_hits.labels(door="zip", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(door="zip", outcome="served").inc()
    title = visiting.payload_of(found).title or "shared"
    return zips.respond(request, visiting.files_of(found), title=title, public=True)


@for_strangers("GET", "POST")
def share_continue(request: HttpRequest, token: UUID) -> HttpResponse:
    """Into the reader's own account, if the owner allows it; asked on a page of its own, so that a share is the same for all."""
    visiting.admit(_address(request), "page")
    found = visiting.standing(token)
    if found is None or not visiting.is_open(found, _key(request)) or not continuing.is_allowed(found):
        raise NotFound
    if not isinstance(request.user, User):
        return redirect_to_login(request.path)
    context = {"title": visiting.payload_of(found).title or _("Shared conversation"), "token": token}
    if request.method == "GET":
        return render(request, "copilot/share/continue.html", context)
    try:
        session_id = str(continuing.bring_in(request.user.pk, found).pk)
    except Refused as problem:
        session_id = str(problem.details.get("session_id", ""))  # taken in before: it goes on there
        if not session_id:
            context |= {"problem": words.of_refusal(problem)}
            return render(request, "copilot/share/continue.html", context, status=problem.status)
    return HttpResponseRedirect(reverse("chat_session", args=[session_id]), status=303)


@for_strangers("POST")
def unlock(request: HttpRequest, token: UUID) -> HttpResponse:
    visiting.admit(_address(request), "page")  # each try costs a hash, whatever tokens are made up for it
    try:
        key = visiting.unlock(token, request.POST.get("password", ""), _address(request))
    except TooMany as problem:
        response = _locked(request, token, _("Too many tries. Please wait a while."), problem.status)
        response["Retry-After"] = str(problem.retry_after_seconds)
        return response
    if key is None:
        found = visiting.standing(token)
        if found is None or not found.password_hash:
            raise NotFound
        return _locked(request, token, _("That is not the password."), 403)
    response = HttpResponseRedirect(reverse("share", args=[token]), status=303)
    response.set_cookie(
        COOKIE,
        key,
        max_age=visiting.key_seconds(),
        path=reverse("share", args=[token]),
        secure=True,
        httponly=True,
        samesite="Lax",
    )
    return response


def _locked(request: HttpRequest, token: UUID, problem: str = "", status: int = 200) -> HttpResponse:
    """Branding and a field; nothing about what is behind it."""
    context = {"token": token, "problem": problem, "site": settings.SITE_URL}
    return render(request, "copilot/share/locked.html", context, status=status)


@csrf_exempt
@for_strangers()
def nothing(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Every other address below /share/, without a query."""
    raise NotFound
