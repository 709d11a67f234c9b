"""Emails for billing notices, each sent once, and alert emails for staff."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from billing import notices, redirects, redis_counters
from billing.errors import CountersUnavailable
from billing.models import BillingNotice
from config.core.emails import build_site_link, list_staff_addresses, send_email

EMAIL_MAX_AGE = timedelta(days=2)  # older notices are no longer worth an email


@dataclass(frozen=True, kw_only=True)
class NoticeEmail:
    subject: str
    text: str


def _build_payment_failed_email(data: dict[str, Any]) -> NoticeEmail:
    last = data.get("last_attempt")
    text = [
        _("The payment for your plan failed.")
        + " "
        + (_("This was the last attempt.") if last else _("We'll try again in a few days."))
    ]
    if data.get("grace_until"):
        text.append(_("You keep your plan until %(date)s.") % {"date": str(data["grace_until"])[:10]})
    if data.get("invoice_url"):
        text.append(_("Pay the invoice: %(url)s") % {"url": data["invoice_url"]})
    text.append(_("Check your card and invoices: %(url)s") % {"url": redirects.get_portal_page_url()})
    subject = _("Last attempt: your payment failed") if last else _("Your payment failed")
    return NoticeEmail(subject=subject, text="\n\n".join(text))


def _build_plan_lapsed_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "The payment for your plan is overdue and the grace period has ended. Pay it to get your plan back: %(url)s"
    )
    return NoticeEmail(subject=_("Your plan is suspended"), text=text % {"url": _get_plan_url()})


def _build_trial_ends_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "Your trial ends on %(date)s. After that we charge the first month, unless you cancel before: %(url)s"
    )
    return NoticeEmail(
        subject=_("Your trial ends soon"),
        text=text % {"date": str(data.get("trial_ends_at", ""))[:10], "url": _get_plan_url()},
    )


def _build_auto_top_up_off_email(data: dict[str, Any]) -> NoticeEmail:
    why = (
        _("Your bank needs you to confirm the payment.")
        if data.get("reason") == "authentication_required"
        else _("Your card was declined.")
    )
    text = _(
        "An automatic top-up failed, so we turned automatic top-ups off. %(why)s Turn them on again: %(url)s"
    )
    return NoticeEmail(
        subject=_("Automatic top-ups are off"), text=text % {"why": why, "url": _get_plan_url()}
    )


def _build_payment_disputed_email(data: dict[str, Any]) -> NoticeEmail:
    text = _(
        "Your bank reports a dispute over a payment for credits. We hold those credits until it's decided: %(url)s"
    )
    return NoticeEmail(subject=_("A payment is being disputed"), text=text % {"url": _get_plan_url()})


def _build_credits_expire_email(data: dict[str, Any]) -> NoticeEmail:
    cents = int(data.get("amount_cents", 0))
    amount = f"{cents // 100}.{cents % 100:02d} {settings.BILLING_CURRENCY.upper()}"
    date = str(data.get("expires_at", ""))[:10]
    text = _("%(amount)s of your credits expire on %(date)s: %(url)s")
    return NoticeEmail(
        subject=_("Some of your credits expire soon"),
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
    """Send a notice's email. Return False if it was already sent, has no template, or the user has no address."""
    notice = (
        BillingNotice.objects.select_related("account__user").filter(pk=notice_id, mailed_at=None).first()
    )
    build_email = EMAILS_BY_NOTICE_KIND.get(notice.kind) if notice else None
    if (
        notice is None
        or build_email is None
        or not notice.account.user.email
        or not notices.claim_notice_email(notice.pk)
    ):
        return False
    mail = build_email(notice.data)
    if not send_email([notice.account.user.email], mail.subject, mail.text):
        notices.unclaim_notice_email(notice.pk)  # the next sweep tries again
        return False
    return True


def send_waiting_emails() -> int:
    """Send the emails whose first attempt was lost with the broker or mail server."""
    since = Now() - EMAIL_MAX_AGE
    waiting = BillingNotice.objects.filter(
        kind__in=EMAILS_BY_NOTICE_KIND, mailed_at=None, created_at__gt=since
    )
    return sum(send_notice_email(notice_id) for notice_id in waiting.values_list("pk", flat=True))


def send_staff_email(kind: str, text: str) -> bool:
    """Mail an alert to ALERT_EMAILS, or to staff if that is empty. The same alert is not repeated within an hour."""
    to = list_staff_addresses()
    if not to or not _claim_alert(f"{kind} {text}"):
        return False
    subject = f"[Pilothouse] {kind.replace('_', ' ')}"
    return send_email(to, subject, f"{text}\n\n{build_site_link('admin:app_list', 'billing')}")


def _claim_alert(about: str) -> bool:
    try:
        return redis_counters.claim_staff_alert(about)
    except CountersUnavailable:
        return True  # a repeated alert is better than none


def _get_plan_url() -> str:
    return redirects.get_plan_page_url()
