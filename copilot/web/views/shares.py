"""Pages for shares: the owner's list, and what visitors of a link see."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Concatenate, ParamSpec
from urllib.parse import quote
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from config.core.errors import NotFound, PayloadTooLarge, RequestRefused, StorageUnavailable, TooManyRequests
from copilot import metrics
from copilot.files import downloads, html_preview, zip_stream
from copilot.models import Share
from copilot.sharing import access
from copilot.sharing import services as sharing
from copilot.web import i18n, share_page
from copilot.web.forms import ShareForm, ShareUnlockForm
from copilot.web.views.base import (
    ROWS_PER_PAGE,
    build_action_view,
    build_page_links,
    get_request_user,
    not_found_as_404,
    parse_offset,
    redirect_to_list,
)


@login_required
@never_cache
@require_GET
def list_shares(request: HttpRequest) -> HttpResponse:
    return _render_shares(request)


@login_required
@require_POST
def change_share(request: HttpRequest, share_id: UUID) -> HttpResponse:
    with not_found_as_404():
        share = sharing.get_share(get_request_user(request).pk, share_id)
    form = ShareForm.from_request(request, share=share)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            sharing.update_share(share, form.build_changes())
            messages.success(request, _("Link updated."))
            return redirect_to_list(request, "shared_links")
    return _render_shares(request, wrong=form)


revoke_share = build_action_view(
    lambda owner_id, share_id: sharing.revoke_share(sharing.get_share(owner_id, share_id)),
    gettext_lazy("Link revoked."),
    then="shared_links",
)


def _render_shares(request: HttpRequest, *, wrong: ShareForm | None = None) -> HttpResponse:
    page = sharing.get_share_page(
        get_request_user(request).pk, limit=ROWS_PER_PAGE, offset=parse_offset(request)
    )
    context = {
        "items": [
            {
                "share": share,
                "state": sharing.get_share_state(share),
                "url": sharing.get_share_url(share),
                "form": wrong if wrong and wrong.share_id == share.pk else ShareForm(share=share),
            }
            for share in page.items
        ],
        **build_page_links(page.offset, has_more=page.has_more),
    }
    return render(request, "copilot/shared_links.html", context, status=wrong.status if wrong else 200)


SHARE_KEY_COOKIE = "share_key"
PUBLIC_SHARE_HEADERS = {
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Referrer-Policy": "no-referrer",
}

P = ParamSpec("P")
ShareView = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def public_share_view(*methods: str) -> Callable[[ShareView[P]], ShareView[P]]:
    """Add the headers of public shares, and answer every refusal in one form; other methods get a 404."""

    def decorate(view: ShareView[P]) -> ShareView[P]:
        @wraps(view)
        def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
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
            response.setdefault("Cache-Control", "private, no-store")  # files set their own
            return response

        return wrapper

    return decorate


def _render_not_found(language: str | None, theme: str) -> str:
    return _render_not_found_once(language, theme if theme in ("dark", "light") else "")


@cache
def _render_not_found_once(language: str | None, theme: str) -> str:
    """Render the page once for everybody, so that guessing costs nothing and its timing reveals nothing."""
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
    share = access.find_live_share(token)
    if share is None:
        metrics.share_hits.labels(endpoint="page", outcome="refused").inc()
        raise NotFound
    if not access.is_unlocked(share, _get_share_key(request)):
        return _render_password_form(request, token, ShareUnlockForm())
    access.record_view(share, _get_client_address(request))
    metrics.share_hits.labels(endpoint="page", outcome="served").inc()
    return render(request, "copilot/share/share.html", _build_share_context(share))


def _build_share_context(share: Share) -> dict[str, object]:
    payload = access.load_payload(share)
    files = share_page.ShareFiles.from_files(share.token, access.list_shared_files(share))
    subject = quote(f"Report of share {share.pk}")
    return {
        "title": payload.title or _("Shared conversation"),
        "kind": payload.kind,
        "author": share.options.get("author", ""),
        "shared_at": share.created_at,
        "transcript": share_page.render_transcript(share, payload, files),
        "cards": list(files.cards.values()),
        "zip": reverse("share_zip", args=[share.token]) if len(files.cards) > 1 else "",
        "onward": reverse("share_continue", args=[share.token]) if sharing.can_continue(share) else "",
        "report": f"mailto:{settings.REPORT_EMAIL}?subject={subject}",
        "site": settings.SITE_URL,
        "token": share.token,
        "render_max": settings.ARTIFACT_RENDER_MAX,
    }


@csrf_exempt
@public_share_view("GET", "HEAD")
def download_share_file(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponseBase:
    """Serve a file: `?download=1` saves it, otherwise it is shown inline where that is safe."""
    access.check_rate_limit(_get_client_address(request), "file")
    file = access.find_shared_file(token, file_id, _get_share_key(request))
    if file is None:
        metrics.share_hits.labels(endpoint="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(endpoint="file", outcome="served").inc()
    return downloads.build_download_response(
        request, file, inline=request.GET.get("download") != "1", public=True
    )


@csrf_exempt
@public_share_view("GET")
def render_share_file(request: HttpRequest, token: UUID, file_id: UUID) -> HttpResponse:
    """Serve a shared document to a frame, without an origin and with the access rules of its download."""
    access.check_rate_limit(_get_client_address(request), "file")
    file = (
        access.find_shared_file(token, file_id, _get_share_key(request))
        if html_preview.is_frame_request(request)
        else None
    )
    if file is None:
        metrics.share_hits.labels(endpoint="file", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(endpoint="file", outcome="served").inc()
    return html_preview.render_html_file(request, file)


@csrf_exempt
@public_share_view("GET", "HEAD")
def download_share_zip(request: HttpRequest, token: UUID) -> HttpResponseBase:
    access.check_rate_limit(_get_client_address(request), "zip")
    share = access.find_live_share(token)
    if share is None or not access.is_unlocked(share, _get_share_key(request)):
        metrics.share_hits.labels(endpoint="zip", outcome="refused").inc()
        raise NotFound
    metrics.share_hits.labels(endpoint="zip", outcome="served").inc()
    title = access.load_payload(share).title or "shared"
    return zip_stream.build_zip_response(request, access.list_shared_files(share), title=title, public=True)


@public_share_view("GET", "POST")
def continue_share(request: HttpRequest, token: UUID) -> HttpResponse:
    """Copy a share into the reader's own account, if its owner allows that.

    This has a page of its own, so that the share itself is the same for everybody.
    """
    access.check_rate_limit(_get_client_address(request), "page")
    share = access.find_live_share(token)
    if (
        share is None
        or not access.is_unlocked(share, _get_share_key(request))
        or not sharing.can_continue(share)
    ):
        raise NotFound
    if not isinstance(request.user, User):
        return redirect_to_login(request.path)
    context = {"title": access.load_payload(share).title or _("Shared conversation"), "token": token}
    if request.method == "GET":
        return render(request, "copilot/share/continue.html", context)
    try:
        session_id = str(sharing.import_share(request.user.pk, share).pk)
    except RequestRefused as problem:
        session_id = str(problem.details.get("session_id", ""))  # imported before: continue there
        if not session_id:
            context |= {"problem": i18n.translate_refusal(problem)}
            return render(request, "copilot/share/continue.html", context, status=problem.status)
    return HttpResponseRedirect(reverse("chat_session", args=[session_id]), status=303)


@public_share_view("POST")
def unlock_share(request: HttpRequest, token: UUID) -> HttpResponse:
    # Each try costs a hash, even for invented tokens.
    access.check_rate_limit(_get_client_address(request), "page")
    form = ShareUnlockForm.from_request(request)
    password = form.cleaned_data["password"] if form.is_valid() else ""
    try:
        key = access.unlock_share(token, password, _get_client_address(request))
    except TooManyRequests as problem:
        form.add_problems(
            [_("Too many attempts. Please try again later.")], field="password", status=problem.status
        )
        response = _render_password_form(request, token, form)
        response["Retry-After"] = str(problem.retry_after_seconds)
        return response
    if key is None:
        share = access.find_live_share(token)
        if share is None or not share.password_hash:
            raise NotFound
        form.add_problems([_("Wrong password.")] if password else [], field="password", status=403)
        return _render_password_form(request, token, form)
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


def _render_password_form(request: HttpRequest, token: UUID, form: ShareUnlockForm) -> HttpResponse:
    """Show the password form, without revealing anything about the share."""
    context = {"token": token, "form": form, "site": settings.SITE_URL}
    return render(request, "copilot/share/locked.html", context, status=form.status)


@csrf_exempt
@public_share_view()
def show_share_not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Answer every other path under /share/ with the same 404, without a query."""
    raise NotFound
