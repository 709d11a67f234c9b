"""What an erasure says and leaves: two mails, a pseudonym and a line in the record (S17)."""

from __future__ import annotations

import logging
import smtplib
from datetime import datetime

from django.conf import settings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.mail import send_mail
from django.utils.translation import gettext as _

from copilot.models import ErasureJob

log = logging.getLogger(__name__)


def anonymise(user: User) -> None:
    """The row stays, for the ledger names it; who it was does not."""
    user.username = f"erased-{user.pk}"
    user.email = user.first_name = user.last_name = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login = None
    user.set_unusable_password()
    user.save()
    user.groups.clear()
    user.user_permissions.clear()


def write_down(job: ErasureJob) -> None:
    """For auditors: that it was done, when, and how much; nothing of what it was."""
    LogEntry.objects.create(
        user_id=job.user_id,
        content_type=ContentType.objects.get_for_model(ErasureJob),
        object_id=str(job.pk),
        object_repr=f"erased-{job.user_id}",
        action_flag=DELETION,
        change_message=f"Account erased; removed by step: {job.progress}",
    )


def say_requested(address: str, due_at: datetime) -> None:
    _send(
        address,
        _("Your Pilothouse account will be erased"),
        _(
            "You asked us to erase your account. It is shut now, and will be erased on {date} (UTC).\n\n"
            "If you want to keep it, sign in before then: {url}\n"
        ).format(date=f"{due_at:%Y-%m-%d %H:%M}", url=f"{settings.SITE_URL}/accounts/login/"),
    )


def say_done(address: str) -> None:
    _send(
        address,
        _("Your Pilothouse account was erased"),
        _("Your conversations, files and settings were erased. Thank you for having been with us.\n"),
    )


def _send(address: str, subject: str, body: str) -> None:
    """A mail that cannot be sent stops nothing."""
    if not address:
        return
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, [address])
    except (smtplib.SMTPException, OSError) as problem:
        log.warning("a mail about an erasure could not be sent: %s", type(problem).__name__)
