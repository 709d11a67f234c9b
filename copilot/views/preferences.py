"""The settings page: time zone, standing instructions and personality of a user (A30.1)."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from copilot import preferences, words
from copilot.commands import clean_text
from copilot.errors import InvalidRequest, Refused
from copilot.views.acting import user_of


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def settings(request: HttpRequest) -> HttpResponse:
    """What was refused stays in the form, so that nothing has to be written twice."""
    owner_id = user_of(request).pk
    shown = preferences.of_user(owner_id)
    status = 200
    if request.method == "POST":
        try:
            preferences.change(owner_id, _chosen(request))
        except Refused as problem:
            messages.error(request, words.of_refusal(problem))
            status = problem.status
            shown = preferences.PreferencesView(
                timezone=request.POST.get("timezone", ""),
                instructions=request.POST.get("instructions", ""),
                personality=shown.personality,
            )
        else:
            messages.success(request, _("Saved. It applies from your next message."))
            return redirect("settings")
    context = {
        "preferences": shown,
        "zones": preferences.zones(),
        "personalities": preferences.personalities(),
        "max_instructions": preferences.MAX_INSTRUCTIONS,
    }
    return render(request, "copilot/settings.html", context, status=status)


def _chosen(request: HttpRequest) -> preferences.Changes:
    """Browsers send line breaks as CR LF."""
    personality = request.POST.get("personality", "")
    if personality and not (personality.isascii() and personality.isdigit() and len(personality) < 10):
        raise InvalidRequest("There is no such personality.", code="unknown_personality")
    return {
        "timezone": request.POST.get("timezone", "").strip(),
        "instructions": clean_text(request.POST.get("instructions", "").replace("\r\n", "\n").strip()),
        "personality_id": int(personality) if personality else None,
    }
