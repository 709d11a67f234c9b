"""Page of a user's login sessions and devices."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot.accounts import devices
from copilot.web.views.base import get_request_user


@login_required
@never_cache
@require_GET
def list_login_sessions(request: HttpRequest) -> HttpResponse:
    user = get_request_user(request)
    login_sessions = devices.list_active_sessions(request, user)
    this_device = devices.find_known_device(request, user.pk)
    context = {
        "sessions": login_sessions,
        "others": len([login for login in login_sessions if not login.is_current]),
        "devices": devices.list_devices(user.pk),
        "this_device": this_device.pk if this_device is not None else None,
    }
    return render(request, "usersessions/usersession_list.html", context)


@login_required
@require_POST
def end_login_session(request: HttpRequest, session_id: int) -> HttpResponse:
    if devices.end_sessions(request, get_request_user(request), session_id):
        messages.success(request, _("Signed out on that device."))
    return redirect("usersessions_list")


@login_required
@require_POST
def end_other_login_sessions(request: HttpRequest) -> HttpResponse:
    count = devices.end_sessions(request, get_request_user(request))
    message = ngettext("Signed out of {count} other session.", "Signed out of {count} other sessions.", count)
    messages.success(request, message.format(count=count))
    return redirect("usersessions_list")


@login_required
@require_POST
def forget_device(request: HttpRequest, device_id: UUID) -> HttpResponse:
    if devices.forget_device(get_request_user(request).pk, device_id):
        messages.success(request, _("Device forgotten. The next sign-in from it sends you an email."))
    return redirect("usersessions_list")
