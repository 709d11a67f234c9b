"""Page of a user's shares: views, expiry, password, revoking."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from config.core.errors import InvalidRequest
from copilot.sharing import services as sharing
from copilot.web.views.base import get_request_user, parse_offset, perform_and_redirect

SHARES_PER_PAGE = 25
MAX_DAYS_DIGITS = 5


@login_required
@never_cache
@require_GET
def list_shares(request: HttpRequest) -> HttpResponse:
    page = sharing.get_share_page(
        get_request_user(request).pk, limit=SHARES_PER_PAGE, offset=parse_offset(request)
    )
    context = {
        "items": [
            {"share": share, "state": sharing.get_share_state(share), "url": sharing.get_share_url(share)}
            for share in page.items
        ],
        "newer": max(page.offset - SHARES_PER_PAGE, 0) if page.offset else None,
        "older": page.offset + SHARES_PER_PAGE if page.has_more else None,
        "most_days": settings.SHARE_MAX_DAYS,
        "shortest": sharing.MIN_PASSWORD_CHARACTERS,
        "longest": sharing.MAX_PASSWORD_CHARACTERS,
    }
    return render(request, "copilot/shared_links.html", context)


@login_required
@require_POST
def change_share(request: HttpRequest, share_id: UUID) -> HttpResponse:
    owner_id = get_request_user(request).pk
    return perform_and_redirect(
        request,
        lambda: sharing.update_share(sharing.get_share(owner_id, share_id), _parse_share_changes(request)),
        _("Link updated."),
        then="shared_links",
    )


@login_required
@require_POST
def revoke_share(request: HttpRequest, share_id: UUID) -> HttpResponse:
    owner_id = get_request_user(request).pk
    return perform_and_redirect(
        request,
        lambda: sharing.revoke_share(sharing.get_share(owner_id, share_id)),
        _("Link revoked."),
        then="shared_links",
    )


def _parse_share_changes(request: HttpRequest) -> sharing.ShareUpdate:
    """Read the changes. Empty fields change nothing; removals are explicit."""
    changes: sharing.ShareUpdate = {}
    expiry, password = request.POST.get("expires", ""), request.POST.get("password", "")
    if expiry:
        changes["expires_in"] = (
            None if expiry == "never" else _parse_days(request, expiry) * sharing.DAY_SECONDS
        )
    if password or request.POST.get("no_password"):
        changes["password"] = password
    return changes


def _parse_days(request: HttpRequest, expiry: str) -> int:
    text = request.POST.get("days", "") if expiry == "custom" else expiry
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DAYS_DIGITS):
        raise InvalidRequest(_("Enter after how many days the link expires."))
    return int(text)
