"""Send mails about accounts; failures are logged and never raised."""

from __future__ import annotations

import smtplib

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.urls import reverse

log = structlog.get_logger(__name__)


def send_account_email(to: list[str], subject: str, body: str) -> bool:
    addresses = [address for address in to if address]
    if not addresses:
        return False
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, addresses)
    except (smtplib.SMTPException, OSError) as problem:
        log.warning("account_mail_failed", subject=subject, error_kind=type(problem).__name__)
        return False
    return True


def build_site_link(name: str, *arguments: object) -> str:
    return settings.SITE_URL + reverse(name, args=arguments)


def list_staff_addresses() -> list[str]:
    if settings.ALERT_EMAILS:
        return list(settings.ALERT_EMAILS)
    found = User.objects.filter(is_staff=True, is_active=True).exclude(email="").order_by("pk")
    return list(found.values_list("email", flat=True)[:20])
