"""The settings page: time zone, custom instructions and personality."""

from __future__ import annotations

from dataclasses import asdict

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from copilot.accounts import preferences
from copilot.web.forms import PreferencesForm
from copilot.web.views.base import get_request_user


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_preferences(request: HttpRequest) -> HttpResponse:
    """Show and save preferences; a refused form keeps what was entered."""
    owner_id = get_request_user(request).pk
    form = PreferencesForm.from_request(request, initial=asdict(preferences.get_preferences(owner_id)))
    if form.is_valid():
        with form.refusals_as_errors():
            preferences.update_preferences(owner_id, form.build_changes())
            messages.success(request, _("Saved. It applies from your next message."))
            return redirect("settings")
    context = {"form": form, "zones": preferences.list_time_zones()}
    return render(request, "copilot/settings.html", context, status=form.status)
