"""The page of what a user has published: views, expiry, password, revoking (S9, W3)."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot.errors import InvalidRequest
from copilot.views.acting import done, offset_of, user_of
from copilot.workspace import shares

PAGE = 25
LONGEST_DAYS = 5  # digits of a number of days


@login_required
@never_cache
@require_GET
def shared_links(request: HttpRequest) -> HttpResponse:
    page = shares.page(user_of(request).pk, limit=PAGE, offset=offset_of(request))
    context = {
        "items": [
            {"share": share, "state": shares.state(share), "url": shares.url(share)} for share in page.items
        ],
        "newer": max(page.offset - PAGE, 0) if page.offset else None,
        "older": page.offset + PAGE if page.has_more else None,
        "most_days": settings.SHARE_MAX_DAYS,
        "shortest": shares.SHORTEST_PASSWORD,
        "longest": shares.LONGEST_PASSWORD,
    }
    return render(request, "copilot/shared_links.html", context)


@login_required
@require_POST
def change_share(request: HttpRequest, share_id: UUID) -> HttpResponse:
    owner_id = user_of(request).pk
    return done(
        request,
        lambda: shares.change(shares.by_id(owner_id, share_id), _changes(request)),
        _("Changed."),
        then="shared_links",
    )


@login_required
@require_POST
def revoke_share(request: HttpRequest, share_id: UUID) -> HttpResponse:
    owner_id = user_of(request).pk
    return done(
        request,
        lambda: shares.revoke(shares.by_id(owner_id, share_id)),
        _("The link is dead."),
        then="shared_links",
    )


def _changes(request: HttpRequest) -> shares.Changes:
    """Empty fields change nothing; what is to go has to be said."""
    asked: shares.Changes = {}
    expiry, password = request.POST.get("expires", ""), request.POST.get("password", "")
    if expiry:
        asked["expires_in"] = None if expiry == "never" else _days(request, expiry) * shares.DAY_SECONDS
    if password or request.POST.get("no_password"):
        asked["password"] = password
    return asked


def _days(request: HttpRequest, expiry: str) -> int:
    text = request.POST.get("days", "") if expiry == "custom" else expiry
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_DAYS):
        raise InvalidRequest(_("Say after how many days the link expires."))
    return int(text)
