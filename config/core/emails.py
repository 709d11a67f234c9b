"""Send emails to users and staff. A mail server that fails is logged, and never raises."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import send_mail
from django.urls import reverse

log = structlog.get_logger(__name__)

MAX_STAFF_RECIPIENTS = 20


def send_email(to: Iterable[str], subject: str, body: str) -> bool:
    """Return whether it was sent; nobody to send it to counts as no."""
    addresses = [address for address in to if address]
    if not addresses:
        return False
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, addresses)
    except OSError as problem:  # the mail library raises subclasses of it
        log.warning("email_failed", subject=subject, error_kind=type(problem).__name__)
        return False
    return True


def build_site_link(name: str, *arguments: object) -> str:
    return settings.SITE_URL + reverse(name, args=arguments)


def list_staff_addresses() -> list[str]:
    """Return ALERT_EMAILS, or the addresses of active staff if that is empty."""
    if settings.ALERT_EMAILS:
        return list(settings.ALERT_EMAILS)
    found = get_user_model().objects.filter(is_staff=True, is_active=True).exclude(email="").order_by("pk")
    return list(found.values_list("email", flat=True)[:MAX_STAFF_RECIPIENTS])
