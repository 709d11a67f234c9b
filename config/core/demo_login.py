"""The demo login: public on purpose, so it exists in development only and is never served to a network."""

from __future__ import annotations

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
