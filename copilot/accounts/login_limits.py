"""Limit password guesses: per address, per account and address, and per account for unknown devices.

An account is the same whether its name or its email address was typed. A device that signed in before has a
count of its own, so other people's guesses never lock the owner out there. Elsewhere the owner waits at most a
quarter of an hour after the guesses end, or signs in at once by passkey, password reset or another site.
"""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import Any

from allauth.account.models import EmailAddress
from allauth.core.internal import ratelimit
from allauth.core.internal.ratelimit import RateLimitUsage
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import HttpRequest

from copilot.accounts.devices import find_known_device

RATE_LIMIT_APP = "login"
ADDRESS_RATES = "10/m/ip,60/h/ip,5/5m/key"
KNOWN_DEVICE_RATES = "5/5m/key"
UNKNOWN_DEVICES_RATES = "50/15m/key"  # per account: at least four addresses have to guess together
MAX_LOGIN_CHARACTERS = 254
RECORDS_KEPT_DAYS = 30


def find_account(credentials: dict[str, Any] | None) -> User | None:
    """Return the account of the typed name or address. A registered address wins, as it does at the login."""
    typed = _get_typed_login(credentials)
    if not typed or "\x00" in typed or len(typed) > MAX_LOGIN_CHARACTERS:
        return None
    known = EmailAddress.objects.filter(email__iexact=typed).order_by("-verified", "pk").first()
    if known is not None:
        return User.objects.filter(pk=known.user_id).first()
    users = User.objects.order_by("pk")
    return users.filter(email__iexact=typed).first() or users.filter(username__iexact=typed).first()


def get_account_name(request: HttpRequest, credentials: dict[str, Any] | None) -> str:
    """Return one name per account for django-axes. Text that names nobody is hashed: it may be a password."""
    found = find_account(credentials)
    if found is not None:
        return found.get_username()
    typed = _get_typed_login(credentials)
    return f"unknown-{sha256(typed.encode()).hexdigest()[:16]}" if typed else ""


def get_client_network(request: HttpRequest) -> str | None:
    """Return the address for django-axes; of IPv6 the network, because one client has all of it.

    Local sockets have none.
    """
    try:
        return str(ratelimit.get_ip(request))
    except PermissionDenied:
        return None


def is_known_device(request: HttpRequest, credentials: dict[str, Any] | None) -> bool:
    """Return whether django-axes should leave the attempt to the device's own limit."""
    found = find_account(credentials)
    return found is not None and find_known_device(request, found.pk) is not None


def consume_attempt(request: HttpRequest, credentials: dict[str, Any]) -> RateLimitUsage | None:
    """Count an attempt, and return None when there were too many. A refused attempt is not counted for the account."""
    account, device = find_account(credentials), None
    if account is not None:
        device = find_known_device(request, account.pk)
    name = get_account_name(request, credentials)
    if device is not None:
        return _consume_rate(request, "device", KNOWN_DEVICE_RATES, f"{name}:{device.pk}")
    address_usage = _consume_rate(request, "address", ADDRESS_RATES, f"{name}:{get_client_network(request)}")
    if address_usage is None:
        return None
    account_usage = _consume_rate(request, "account", UNKNOWN_DEVICES_RATES, name)
    if account_usage is None:
        address_usage.rollback()
        return None
    return RateLimitUsage(usage=[*address_usage.usage, *account_usage.usage])


def clear_attempts(request: HttpRequest, credentials: dict[str, Any]) -> None:
    name = get_account_name(request, credentials)
    for action, rates, key in (
        ("address", ADDRESS_RATES, f"{name}:{get_client_network(request)}"),
        ("account", UNKNOWN_DEVICES_RATES, name),
    ):
        ratelimit.clear(request, app=RATE_LIMIT_APP, action=action, config={action: rates}, key=key)


def purge_login_records() -> int:
    """Delete old django-axes rows, which hold addresses and devices of people."""
    old = Now() - timedelta(days=RECORDS_KEPT_DAYS)
    rows = [
        model.objects.filter(attempt_time__lt=old) for model in (AccessLog, AccessAttempt, AccessFailureLog)
    ]
    return sum(queryset.delete()[0] for queryset in rows)


def _consume_rate(request: HttpRequest, action: str, rates: str, key: str) -> RateLimitUsage | None:
    used: RateLimitUsage | None = ratelimit.consume(
        request, app=RATE_LIMIT_APP, action=action, config={action: rates}, key=key
    )
    return used


def _get_typed_login(credentials: dict[str, Any] | None) -> str:
    fields = credentials or {}
    return str(fields.get("email") or fields.get("username") or "").strip().lower()
