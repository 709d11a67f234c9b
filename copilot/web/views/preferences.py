"""The settings page: time zone, custom instructions and personality."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from config.core.errors import InvalidRequest, RequestRefused
from copilot.accounts import preferences
from copilot.chat.commands import clean_text
from copilot.web import i18n
from copilot.web.views.base import get_request_user


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_preferences(request: HttpRequest) -> HttpResponse:
    """Show and save preferences; a refused form keeps what was entered."""
    owner_id = get_request_user(request).pk
    shown = preferences.get_preferences(owner_id)
    status = 200
    if request.method == "POST":
        try:
            preferences.update_preferences(owner_id, _parse_preferences(request))
        except RequestRefused as problem:
            messages.error(request, i18n.translate_refusal(problem))
            status = problem.status
            shown = preferences.UserPreferences(
                timezone=request.POST.get("timezone", ""),
                instructions=request.POST.get("instructions", ""),
                personality=shown.personality,
            )
        else:
            messages.success(request, _("Saved. It applies from your next message."))
            return redirect("settings")
    context = {
        "preferences": shown,
        "zones": preferences.list_time_zones(),
        "personalities": preferences.list_personalities(),
        "max_instructions": preferences.MAX_INSTRUCTIONS_CHARACTERS,
    }
    return render(request, "copilot/settings.html", context, status=status)


def _parse_preferences(request: HttpRequest) -> preferences.PreferenceUpdate:
    personality = request.POST.get("personality", "")
    if personality and not (personality.isascii() and personality.isdigit() and len(personality) < 10):
        raise InvalidRequest("This personality does not exist.", code="unknown_personality")
    return {
        "timezone": request.POST.get("timezone", "").strip(),
        # Browsers send line breaks as CR LF.
        "instructions": clean_text(request.POST.get("instructions", "").replace("\r\n", "\n").strip()),
        "personality_id": int(personality) if personality else None,
    }
