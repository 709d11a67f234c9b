"""The demo login: public on purpose, so it exists in development only and is never served to a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

DEMO_USERNAME = "demo"
DEMO_PASSWORD = "demo-pilothouse"  # noqa: S105 - printed by `make run`


def is_demo_login_open() -> bool:
    """Return True if anybody who reads our documentation can log in."""
    from django.contrib.auth.models import User

    user = User.objects.filter(username=DEMO_USERNAME, is_active=True).first()
    return user is not None and user.check_password(DEMO_PASSWORD)


def open_demo_login() -> None:
    """Create the account, or open it again after `close_demo_login`. An account with another password is left alone."""
    from django.contrib.auth.models import User

    user = User.objects.filter(username=DEMO_USERNAME).first()
    if user is None:
        User.objects.create_superuser(DEMO_USERNAME, "demo@example.com", DEMO_PASSWORD)
    elif not user.is_active and not user.has_usable_password():
        user.is_active = True
        user.set_password(DEMO_PASSWORD)
        user.save(update_fields=["password", "is_active"])


def close_demo_login() -> bool:
    """Remove the public password and end its sessions. Return True if it was still in use."""
    from django.contrib.auth.models import User

    user = User.objects.filter(username=DEMO_USERNAME).first()
    if user is None or not user.check_password(DEMO_PASSWORD):
        return False
    user.is_active = False
    user.set_unusable_password()
    user.save(update_fields=["password", "is_active"])
    return True


RETRY_SECONDS = 2


def hold_until_demo_login_exists(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Answer 503 with a reload until the demo user exists: the web process starts before the database is migrated."""
    exists = False

    @wraps(view)
    def show_when_ready(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        nonlocal exists
        exists = exists or _has_demo_user()
        return view(request, *args, **kwargs) if exists else _build_starting_response()

    return show_when_ready


def _has_demo_user() -> bool:
    from django.contrib.auth.models import User
    from django.db import DatabaseError, transaction

    try:
        with transaction.atomic():
            return User.objects.filter(username=DEMO_USERNAME).exists()
    except DatabaseError:  # not reachable, or not migrated yet
        return False


def _build_starting_response() -> HttpResponseBase:
    from django.http import HttpResponse

    seconds = str(RETRY_SECONDS)
    return HttpResponse(
        "Pilothouse is starting. This page reloads by itself.\n",
        status=503,
        content_type="text/plain; charset=utf-8",
        headers={"Retry-After": seconds, "Refresh": seconds, "Cache-Control": "no-store"},
    )
