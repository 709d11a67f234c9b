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

from billing import notices, redirects, redis_counters
from billing.errors import CountersUnavailable
from billing.models import BillingNotice

logger = logging.getLogger(__name__)

EMAIL_MAX_AGE = timedelta(days=2)  # older ones would be news to nobody
MAX_STAFF_RECIPIENTS = 20  # in one mail


@dataclass(frozen=True, kw_only=True)
class NoticeEmail:
    subject: str
    text: str


def _build_payment_failed_email(data: dict[str, Any]) -> NoticeEmail:
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
    text.append(_("Look at your card and your invoices: %(url)s") % {"url": redirects.get_portal_page_url()})
    subject = (
        _("Last attempt: your payment did not go through") if last else _("Your payment did not go through")
    )
    return NoticeEmail(subject=subject, text="\n\n".join(text))


def _build_plan_lapsed_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "The payment for your plan is overdue, and the time of grace is over. Settle it and your plan is back: %(url)s"
    )
    return NoticeEmail(subject=_("Your plan is suspended"), text=text % {"url": _get_plan_url()})


def _build_trial_ends_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "Your trial ends on %(date)s. Then the first month is charged, unless you end it before: %(url)s"
    )
    return NoticeEmail(
        subject=_("Your trial ends soon"),
        text=text % {"date": str(data.get("trial_ends_at", ""))[:10], "url": _get_plan_url()},
    )


def _build_auto_top_up_off_email(data: dict[str, Any]) -> NoticeEmail:
    why = (
        _("Your bank wants to see you before it pays.")
        if data.get("reason") == "authentication_required"
        else _("Your card was not accepted.")
    )
    text = _(
        "An automatic top-up did not go through, so automatic top-ups are off. %(why)s Switch them on again: %(url)s"
    )
    return NoticeEmail(
        subject=_("Automatic top-ups are off"), text=text % {"why": why, "url": _get_plan_url()}
    )


def _build_payment_disputed_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "A payment for credits is disputed at your bank. Its credit is held until that is decided: %(url)s"
    )
    return NoticeEmail(subject=_("A payment is disputed"), text=text % {"url": _get_plan_url()})


def _build_credits_expire_email(data: dict[str, Any]) -> NoticeEmail:
    cents = int(data.get("amount_cents", 0))
    amount = f"{cents // 100}.{cents % 100:02d} {settings.BILLING_CURRENCY.upper()}"
    date = str(data.get("expires_at", ""))[:10]
    text = _("%(amount)s of your credits end on %(date)s if they are not used before: %(url)s")
    return NoticeEmail(
        subject=_("Some of your credits end soon"),
        text=text % {"amount": amount, "date": date, "url": _get_plan_url()},
    )


EMAILS_BY_NOTICE_KIND: dict[str, Callable[[dict[str, Any]], NoticeEmail]] = {
    "auto_top_up_off": _build_auto_top_up_off_email,
    "credits_expire": _build_credits_expire_email,
    "payment_disputed": _build_payment_disputed_email,
    "payment_failed": _build_payment_failed_email,
    "plan_lapsed": _build_plan_lapsed_email,
    "trial_ends": _build_trial_ends_email,
}


def send_notice_email(notice_id: int) -> bool:
    """False when there is nothing to send: it was sent, is of a quiet kind, or its user has no address."""
    notice = (
        BillingNotice.objects.select_related("account__user").filter(pk=notice_id, mailed_at=None).first()
    )
    write = EMAILS_BY_NOTICE_KIND.get(notice.kind) if notice else None
    if (
        notice is None
        or write is None
        or not notice.account.user.email
        or not notices.claim_notice_email(notice.pk)
    ):
        return False
    mail = write(notice.data)
    try:
        send_mail(mail.subject, mail.text, settings.DEFAULT_FROM_EMAIL, [notice.account.user.email])
    except (smtplib.SMTPException, OSError) as problem:
        notices.unclaim_notice_email(notice.pk)  # the next sweep tries again
        logger.warning("The mail of notice %s could not be sent: %s.", notice.pk, type(problem).__name__)
        return False
    return True


def send_waiting_emails() -> int:
    """Every hour: those whose first attempt was lost with a broker or a mail server."""
    since = Now() - EMAIL_MAX_AGE
    waiting = BillingNotice.objects.filter(
        kind__in=EMAILS_BY_NOTICE_KIND, mailed_at=None, created_at__gt=since
    )
    return sum(send_notice_email(notice_id) for notice_id in waiting.values_list("pk", flat=True))


def send_staff_email(kind: str, text: str) -> bool:
    """What needs a person: to the addresses of the settings, else to staff. The same is not said twice in an hour."""
    to = settings.ALERT_EMAILS or _list_staff_addresses()
    if not to or not _claim_alert(f"{kind} {text}"):
        return False
    subject = f"[Pilothouse] {kind.replace('_', ' ')}"
    body = f"{text}\n\n{settings.SITE_URL}{reverse('admin:app_list', args=['billing'])}"
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, to)
    except (smtplib.SMTPException, OSError) as problem:
        logger.warning("Staff could not be mailed about %s: %s.", kind, type(problem).__name__)
        return False
    return True


def _list_staff_addresses() -> list[str]:
    staff = get_user_model().objects.filter(is_staff=True, is_active=True).exclude(email="")
    return list(staff.order_by("pk").values_list("email", flat=True)[:MAX_STAFF_RECIPIENTS])


def _claim_alert(about: str) -> bool:
    """Too often is better than never."""
    try:
        return redis_counters.claim_staff_alert(about)
    except CountersUnavailable:
        return True


def _get_plan_url() -> str:
    return redirects.get_plan_page_url()
