"""Notices that should not wait until somebody looks: one e-mail each, sent once."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.translation import gettext as _

from billing import notices
from billing.models import BillingNotice

logger = logging.getLogger(__name__)

WORTH_SENDING = timedelta(days=2)  # older ones would be news to nobody


@dataclass(frozen=True, kw_only=True)
class Mail:
    subject: str
    text: str


def _payment_failed(data: dict[str, Any]) -> Mail:
    last = data.get("last_attempt")
    text = [
        _("The payment for your plan did not go through.")
        + " "
        + (_("This was the last attempt.") if last else _("We will try again in some days."))
    ]
    if data.get("grace_until"):
        text.append(_("Your plan stays until %(date)s.") % {"date": str(data["grace_until"])[:10]})
    if data.get("invoice_url"):
        text.append(_("Pay the invoice: %(url)s") % {"url": data["invoice_url"]})
    text.append(_("Look at your card: %(url)s") % {"url": _page()})
    subject = (
        _("Last attempt: your payment did not go through") if last else _("Your payment did not go through")
    )
    return Mail(subject=subject, text="\n\n".join(text))


def _plan_lapsed(data: dict[str, Any]) -> Mail:
    text = _(
        "The payment for your plan is overdue, and the time of grace is over. Settle it and your plan is back: %(url)s"
    )
    return Mail(subject=_("Your plan is suspended"), text=text % {"url": _page()})


def _trial_ends(data: dict[str, Any]) -> Mail:
    text = _(
        "Your trial ends on %(date)s. Then the first month is charged, unless you end it before: %(url)s"
    )
    return Mail(
        subject=_("Your trial ends soon"),
        text=text % {"date": str(data.get("trial_ends_at", ""))[:10], "url": _page()},
    )


def _auto_top_up_off(data: dict[str, Any]) -> Mail:
    why = (
        _("Your bank wants to see you before it pays.")
        if data.get("reason") == "authentication_required"
        else _("Your card was not accepted.")
    )
    text = _(
        "An automatic top-up did not go through, so automatic top-ups are off. %(why)s Switch them on again: %(url)s"
    )
    return Mail(subject=_("Automatic top-ups are off"), text=text % {"why": why, "url": _page()})


def _payment_disputed(data: dict[str, Any]) -> Mail:
    text = _(
        "A payment for credits is disputed at your bank. Its credit is held until that is decided: %(url)s"
    )
    return Mail(subject=_("A payment is disputed"), text=text % {"url": _page()})


MAILS: dict[str, Callable[[dict[str, Any]], Mail]] = {
    "auto_top_up_off": _auto_top_up_off,
    "payment_disputed": _payment_disputed,
    "payment_failed": _payment_failed,
    "plan_lapsed": _plan_lapsed,
    "trial_ends": _trial_ends,
}


def send(notice_id: int) -> bool:
    """False when there is nothing to send: it was sent, is of a quiet kind, or its user has no address."""
    notice = (
        BillingNotice.objects.select_related("account__user").filter(pk=notice_id, mailed_at=None).first()
    )
    write = MAILS.get(notice.kind) if notice else None
    if notice is None or write is None or not notice.account.user.email or not notices.claim_mail(notice.pk):
        return False
    mail = write(notice.data)
    try:
        send_mail(mail.subject, mail.text, settings.DEFAULT_FROM_EMAIL, [notice.account.user.email])
    except (smtplib.SMTPException, OSError) as problem:
        notices.unclaim_mail(notice.pk)  # the next sweep tries again
        logger.warning("The mail of notice %s could not be sent: %s.", notice.pk, type(problem).__name__)
        return False
    return True


def send_waiting() -> int:
    """Every hour: those whose first attempt was lost with a broker or a mail server."""
    since = Now() - WORTH_SENDING
    waiting = BillingNotice.objects.filter(kind__in=MAILS, mailed_at=None, created_at__gt=since)
    return sum(send(notice_id) for notice_id in waiting.values_list("pk", flat=True))


def _page() -> str:
    return f"{settings.SITE_URL}{reverse('billing_plan')}"
