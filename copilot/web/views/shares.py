"""Page of a user's shares: views, expiry, password, revoking."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot.sharing import services as sharing
from copilot.web.forms import ShareForm
from copilot.web.views.base import (
    get_request_user,
    not_found_as_404,
    parse_offset,
    perform_and_redirect,
    redirect_to_list,
)

SHARES_PER_PAGE = 25


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


def _render_shares(request: HttpRequest, *, wrong: ShareForm | None = None) -> HttpResponse:
    page = sharing.get_share_page(
        get_request_user(request).pk, limit=SHARES_PER_PAGE, offset=parse_offset(request)
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
        "offset": page.offset,
        "newer": max(page.offset - SHARES_PER_PAGE, 0) if page.offset else None,
        "older": page.offset + SHARES_PER_PAGE if page.has_more else None,
    }
    return render(request, "copilot/shared_links.html", context, status=wrong.status if wrong else 200)
