"""Pages for a user's API keys."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from copilot.accounts import api_keys
from copilot.accounts.recent_login import recent_login_required
from copilot.web.forms import ApiKeyForm
from copilot.web.views.base import get_request_user, parse_offset, perform_and_redirect

KEYS_PER_PAGE = 25


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@recent_login_required
def manage_api_keys(request: HttpRequest) -> HttpResponse:
    """List and create keys. The secret is shown on this page only."""
    user = get_request_user(request)
    form, secret = ApiKeyForm.from_request(request, user=user), ""
    if form.is_valid():
        with form.refusals_as_errors():
            created = api_keys.create_api_key(
                user, name=form.cleaned_data["name"], scopes=tuple(form.cleaned_data["scopes"])
            )
            form, secret = ApiKeyForm(user=user), created.token
    offset = parse_offset(request)
    found = api_keys.list_api_keys(user.pk)[offset : offset + KEYS_PER_PAGE + 1]
    context = {
        "form": form,
        "keys": found[:KEYS_PER_PAGE],
        "newer": max(offset - KEYS_PER_PAGE, 0) if offset else None,
        "older": offset + KEYS_PER_PAGE if len(found) > KEYS_PER_PAGE else None,
        "secret": secret,
    }
    return render(request, "copilot/api_keys.html", context, status=form.status)


@login_required
@require_POST
def revoke_all_api_keys(request: HttpRequest) -> HttpResponse:
    count = api_keys.revoke_all_api_keys(get_request_user(request).pk)
    message = ngettext("{count} key revoked.", "{count} keys revoked.", count)
    messages.success(request, message.format(count=count))
    return redirect("api_keys")


@login_required
@require_POST
def revoke_api_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: api_keys.revoke_api_key(get_request_user(request).pk, key_id),
        _("Key revoked."),
        then="api_keys",
    )
