"""Require a recent login for acts that a stolen session must not do: keys, email, exports, deletion."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from allauth.account.authentication import get_authentication_records
from allauth.account.internal.flows.reauthentication import get_reauthentication_flows
from allauth.core.exceptions import ReauthenticationRequired
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from config.core.errors import Forbidden

P = ParamSpec("P")
ViewFunction = Callable[Concatenate[HttpRequest, P], HttpResponse]
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def is_login_recent(request: HttpRequest) -> bool:
    if not isinstance(request.user, User):
        return False
    records = get_authentication_records(request, request.user)
    latest = max((float(record.get("at") or 0) for record in records), default=0.0)
    return time.time() - latest < settings.ACCOUNT_REAUTHENTICATION_TIMEOUT


def recent_login_required(view: ViewFunction[P]) -> ViewFunction[P]:
    """Ask for confirmation, then continue with the same request. Safe methods need none."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if request.method in SAFE_METHODS or is_login_recent(request):
            return view(request, *args, **kwargs)
        if isinstance(request.user, User) and not get_reauthentication_flows(request.user):
            # They can only sign in through another site, so they confirm by signing in there again.
            logout(request)
            messages.info(request, _("Sign in again to continue."))
            return redirect_to_login(request.path)
        raise ReauthenticationRequired  # allauth's middleware keeps the request and asks for confirmation

    return guarded


def check_recent_login(request: HttpRequest) -> None:
    """Require a recent login for API calls by cookie. Raises Forbidden."""
    if not is_login_recent(request):
        raise Forbidden(
            "Please confirm it's you first.",
            code="recent_login_required",
            hint="Sign in again, or confirm your password at /accounts/reauthenticate/, then try again.",
        )
