"""The page of a link token: it explains what confirming means. Viewing it changes nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from config.core.errors import InvalidRequest, NotFound, RequestRefused
from copilot.web.views.base import get_request_user
from linking import selectors
from linking.errors import LinkAlreadyExists, LinkTokenExpired
from linking.links import confirmation, tokens
from linking.models import LinkToken, Platform
from linking.models.fields import clean_name
from linking.selectors import get_bot_names
from linking.web.forms import ServerCapsForm

PRIVATE_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}
P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def private_page(view: View[P]) -> View[P]:
    """Send headers that keep the page, whose URL is a secret, out of caches, search engines and referrers."""

    @wraps(view)
    def answer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        for name, value in PRIVATE_HEADERS.items():
            response[name] = value
        return response

    return answer


@private_page
@login_required
@require_safe
def show_link_token(request: HttpRequest, token: str) -> HttpResponse:
    """Show the token without using it, because platforms fetch links for previews."""
    row = selectors.find_token(tokens.hash_token(token))
    if row is None:
        return _render_gone(request, status=404)
    if selectors.is_token_confirmed_by(row, get_request_user(request).pk):
        return _render_page(request, "linking/done.html", row, token)
    if not selectors.is_token_pending(row):
        return _render_gone(request, status=410)
    if selectors.is_linked(row.kind, row.platform, row.bot_account, row.subject_id):
        return _render_taken(request, row, token)
    return _render_page(request, "linking/claim.html", row, token)


@private_page
@login_required
@require_POST
def confirm_server(request: HttpRequest, token: str) -> HttpResponse:
    user, form = get_request_user(request), ServerCapsForm.from_request(request)
    if not form.is_valid():
        row = selectors.find_token(tokens.hash_token(token))
        if row is None or not selectors.is_token_pending(row):
            return _render_gone(request, status=404 if row is None else 410)
        return _render_page(request, "linking/claim.html", row, token, form=form, status=form.status)
    return _confirm_and_redirect(
        request, token, lambda: confirmation.confirm_server_link(user, token, form.build_settings())
    )


@private_page
@login_required
@require_POST
def confirm_user(request: HttpRequest, token: str) -> HttpResponse:
    return _confirm_and_redirect(
        request, token, lambda: confirmation.confirm_user_link(get_request_user(request), token)
    )


@private_page
@login_required
@require_POST
def cancel_link_token(request: HttpRequest, token: str) -> HttpResponse:
    tokens.cancel_token(token)
    return render(request, "linking/cancelled.html")


@private_page
@require_safe
def show_link_qr(request: HttpRequest, token: str) -> HttpResponse:
    """Render the URL as a QR code. It needs neither login nor query: it shows only what the request contains."""
    return render_qr_code(f"{settings.LINK_BASE_URL}/{token}")


def render_qr_code(address: str) -> HttpResponse:
    import segno

    drawn = io.BytesIO()
    segno.make(address, error="m", micro=False).save(
        drawn, kind="svg", scale=8, border=4, dark="#1d2422", light="#ffffff"
    )
    return HttpResponse(drawn.getvalue(), content_type="image/svg+xml")


def _confirm_and_redirect(request: HttpRequest, token: str, act: Callable[[], object]) -> HttpResponse:
    """Confirm and redirect; a second click of the same person succeeds too."""
    try:
        act()
    except (LinkTokenExpired, LinkAlreadyExists) as problem:
        row = selectors.find_token(tokens.hash_token(token))
        if row is not None and selectors.is_token_confirmed_by(row, get_request_user(request).pk):
            return redirect("link_claim", token)
        if isinstance(problem, LinkAlreadyExists) and row is not None:
            return _render_taken(request, row, token)
        return _render_gone(request, status=410)
    except NotFound:
        return _render_gone(request, status=404)
    except InvalidRequest as problem:
        row = selectors.find_token(tokens.hash_token(token))
        if row is None:
            return _render_gone(request, status=404)
        return _render_page(request, "linking/claim.html", row, token, problem=problem)
    return redirect("link_claim", token)


def _render_page(
    request: HttpRequest,
    template: str,
    row: LinkToken,
    token: str,
    *,
    form: ServerCapsForm | None = None,
    problem: RequestRefused | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "token": token,
        "kind": row.kind,
        "platform": Platform(row.platform).label,
        "bot": get_bot_names([(row.platform, row.bot_account)])[row.platform, row.bot_account],
        "name": clean_name(row.subject_name) or _("Unnamed"),
        "requester": clean_name(row.requester_name),
        "minutes": selectors.get_minutes_left(row),
        "form": form or ServerCapsForm(),
        "problem": problem,
        "account": get_request_user(request).email or get_request_user(request).get_username(),
    }
    return render(request, template, context, status=problem.status if problem else status)


def _render_taken(request: HttpRequest, row: LinkToken, token: str) -> HttpResponse:
    yours = selectors.is_linked(
        row.kind, row.platform, row.bot_account, row.subject_id, to=get_request_user(request).pk
    )
    return _render_page(
        request, "linking/done.html" if yours else "linking/taken.html", row, token, status=409
    )


def _render_gone(request: HttpRequest, *, status: int) -> HttpResponse:
    return render(request, "linking/gone.html", {"status": status}, status=status)
