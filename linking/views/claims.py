"""The page of a link token: what confirming means, and the button that does it; looking changes nothing (L6)."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from copilot.errors import InvalidRequest, NotFound, Refused
from linking import links, queries
from linking.bots import bot_names
from linking.errors import LinkAlreadyExists, LinkTokenExpired
from linking.forms import CAPS_OFFERED, caps_chosen
from linking.models import LinkToken, Platform
from linking.names import clean_name

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}
P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def private(view: View[P]) -> View[P]:
    """The address is a secret and the page is one person's: nobody keeps, indexes or passes it on."""

    @wraps(view)
    def answer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        for name, value in HEADERS.items():
            response[name] = value
        return response

    return answer


@private
@login_required
@require_safe
def claim(request: HttpRequest, token: str) -> HttpResponse:
    """Platforms fetch links for previews: nothing is used or changed here."""
    row = queries.token_by_digest(links.digest(token))
    if row is None:
        return _gone(request, status=404)
    if queries.is_confirmed_by(row, _user(request).pk):
        return _page(request, "linking/done.html", row, token)
    if not queries.is_pending(row):
        return _gone(request, status=410)
    if queries.is_linked(row.kind, row.platform, row.bot_account, row.subject_id):
        return _taken(request, row, token)
    return _page(request, "linking/claim.html", row, token)


@private
@login_required
@require_POST
def confirm_server(request: HttpRequest, token: str) -> HttpResponse:
    return _confirmed(
        request, token, lambda: links.confirm_server(_user(request), token, caps_chosen(request.POST))
    )


@private
@login_required
@require_POST
def confirm_user(request: HttpRequest, token: str) -> HttpResponse:
    return _confirmed(request, token, lambda: links.confirm_user(_user(request), token))


@private
@login_required
@require_POST
def cancel(request: HttpRequest, token: str) -> HttpResponse:
    links.cancel_token(token)
    return render(request, "linking/cancelled.html")


@private
@require_safe
def qr(request: HttpRequest, token: str) -> HttpResponse:
    """The address as a picture. No login and no look-up: it tells nothing that the asker did not say."""
    return picture(f"{settings.LINK_BASE_URL}/{token}")


def picture(address: str) -> HttpResponse:
    import segno

    drawn = io.BytesIO()
    segno.make(address, error="m", micro=False).save(
        drawn, kind="svg", scale=8, border=4, dark="#1d2422", light="#ffffff"
    )
    return HttpResponse(drawn.getvalue(), content_type="image/svg+xml")


def _confirmed(request: HttpRequest, token: str, act: Callable[[], object]) -> HttpResponse:
    """Done, or done a moment ago by the same person's first click (A-L5.2)."""
    try:
        act()
    except (LinkTokenExpired, LinkAlreadyExists) as problem:
        row = queries.token_by_digest(links.digest(token))
        if row is not None and queries.is_confirmed_by(row, _user(request).pk):
            return redirect("link_claim", token)
        if isinstance(problem, LinkAlreadyExists) and row is not None:
            return _taken(request, row, token)
        return _gone(request, status=410)
    except NotFound:
        return _gone(request, status=404)
    except InvalidRequest as problem:
        row = queries.token_by_digest(links.digest(token))
        if row is None:
            return _gone(request, status=404)
        return _page(request, "linking/claim.html", row, token, problem=problem)
    return redirect("link_claim", token)


def _page(
    request: HttpRequest,
    template: str,
    row: LinkToken,
    token: str,
    *,
    problem: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "token": token,
        "kind": row.kind,
        "platform": Platform(row.platform).label,
        "bot": bot_names([(row.platform, row.bot_account)])[row.platform, row.bot_account],
        "name": clean_name(row.subject_name) or _("without a name"),
        "requester": clean_name(row.requester_name),
        "minutes": queries.minutes_left(row),
        "caps": CAPS_OFFERED,
        "problem": problem,
        "account": _user(request).email or _user(request).get_username(),
    }
    return render(request, template, context, status=problem.status if problem else status)


def _taken(request: HttpRequest, row: LinkToken, token: str) -> HttpResponse:
    yours = queries.is_linked(row.kind, row.platform, row.bot_account, row.subject_id, to=_user(request).pk)
    return _page(request, "linking/done.html" if yours else "linking/taken.html", row, token, status=409)


def _gone(request: HttpRequest, *, status: int) -> HttpResponse:
    return render(request, "linking/gone.html", {"status": status}, status=status)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # login_required let nobody else in
    return request.user
