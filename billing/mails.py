"""What should not wait until somebody looks: an e-mail for each notice, sent once, and one for staff who are called."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import send_mail
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.translation import gettext as _

from billing import counters, notices, redirects
from billing.errors import CountersDown
from billing.models import BillingNotice

logger = logging.getLogger(__name__)

WORTH_SENDING = timedelta(days=2)  # older ones would be news to nobody
MOST_STAFF = 20  # in one mail


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
    text.append(_("Look at your card and your invoices: %(url)s") % {"url": redirects.portal()})
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


def _credits_expire(data: dict[str, Any]) -> Mail:
    cents = int(data.get("amount_cents", 0))
    amount = f"{cents // 100}.{cents % 100:02d} {settings.BILLING_CURRENCY.upper()}"
    date = str(data.get("expires_at", ""))[:10]
    text = _("%(amount)s of your credits end on %(date)s if they are not used before: %(url)s")
    return Mail(
        subject=_("Some of your credits end soon"),
        text=text % {"amount": amount, "date": date, "url": _page()},
    )


MAILS: dict[str, Callable[[dict[str, Any]], Mail]] = {
    "auto_top_up_off": _auto_top_up_off,
    "credits_expire": _credits_expire,
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


def tell_staff(kind: str, text: str) -> bool:
    """What needs a person: to the addresses of the settings, else to staff. The same is not said twice in an hour."""
    to = settings.ALERT_EMAILS or _staff_addresses()
    if not to or not _is_news(f"{kind} {text}"):
        return False
    subject = f"[Pilothouse] {kind.replace('_', ' ')}"
    body = f"{text}\n\n{settings.SITE_URL}{reverse('admin:app_list', args=['billing'])}"
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, to)
    except (smtplib.SMTPException, OSError) as problem:
        logger.warning("Staff could not be mailed about %s: %s.", kind, type(problem).__name__)
        return False
    return True


def _staff_addresses() -> list[str]:
    staff = get_user_model().objects.filter(is_staff=True, is_active=True).exclude(email="")
    return list(staff.order_by("pk").values_list("email", flat=True)[:MOST_STAFF])


def _is_news(about: str) -> bool:
    """Too often is better than never."""
    try:
        return counters.is_news(about)
    except CountersDown:
        return True


def _page() -> str:
    return redirects.plan_page()
