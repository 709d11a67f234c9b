"""Alert people about critical findings by mail and webhook: at once, every hour, and once when resolved.

While nothing critical is found, HEARTBEAT_URL is called once a minute. When those calls stop, an outside monitor knows
that something is wrong even if nobody here is left to say so.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException

import structlog
from django.conf import settings
from django.core.mail import mail_admins
from django.db import Error, connection
from django.db.models.functions import Now
from django.urls import reverse

from diagnostics.findings.figures import Snapshot
from diagnostics.findings.rules import Finding, evaluate_findings
from diagnostics.models import Alert

log = structlog.get_logger(__name__)

REPEAT_AFTER = timedelta(hours=1)
WEBHOOK_TIMEOUT_SECONDS = 5.0
DEPENDENCY_DOWN_PREFIX = "dependency_down:"

HEARTBEAT_INTERVAL_SECONDS = 60.0

_called_at = float("-inf")  # when HEARTBEAT_URL was called last
_alerted_in_memory: dict[str, float] = {}  # sent while the database was away, by time


@dataclass(frozen=True, kw_only=True)
class AlertNotification:
    code: str
    title: str
    status: str  # firing, resolved
    words: str

    @property
    def subject(self) -> str:
        return f"{'Act now' if self.status == 'firing' else 'Resolved'}: {self.title}"


def has_recipients() -> bool:
    return bool(settings.ADMINS or settings.DIAG_ALERT_WEBHOOK_URL)


def find_critical_codes(seen: Snapshot) -> frozenset[str]:
    return frozenset(finding.code for finding in evaluate_findings(seen) if finding.severity == "critical")


def send_alerts(seen: Snapshot, *, only: Collection[str] | None = None) -> None:
    """Send alerts that are new or still firing after an hour, and those that are resolved.

    `only` limits which codes may fire, for callers who check twice first. What could not be read resolves nothing.
    """
    critical = [finding for finding in evaluate_findings(seen) if finding.severity == "critical"]
    for finding in critical:
        if only is not None and finding.code not in only:
            continue
        if _claim_alert(finding) and not _send_notification(_build_firing(finding)):
            _release_alert(finding.code)
    for code, title in _resolve_alerts({finding.code for finding in critical}, seen.summary.degraded):
        _send_notification(
            AlertNotification(code=code, title=title, status="resolved", words="This is no longer found.")
        )


def _build_firing(finding: Finding) -> AlertNotification:
    numbers = ", ".join(f"{name} {number:g}" for name, number in finding.numbers.items())
    words = "\n".join(text for text in (finding.why, finding.suggested_action, numbers) if text)
    return AlertNotification(code=finding.code, title=finding.title, status="firing", words=words)


# --- Which alerts were sent ---


def _claim_alert(finding: Finding) -> bool:
    """Claim an alert by one conditional update, so that only one process sends it; without a database, in memory."""
    try:
        known = Alert.objects.filter(pk=finding.code)
        if known.filter(notified_at__lt=Now() - REPEAT_AFTER).update(notified_at=Now(), resolved_at=None):
            return True
        fields = {"title": finding.title, "notified_at": Now()}
        return Alert.objects.get_or_create(pk=finding.code, defaults=fields)[1]
    except Error:
        connection.close()
        last = _alerted_in_memory.get(finding.code)
        due = last is None or time.monotonic() - last > REPEAT_AFTER.total_seconds()
        if due:
            _alerted_in_memory[finding.code] = time.monotonic()
        return due


def _release_alert(code: str) -> None:
    """Undo the claim when nobody could be reached, so that it is tried again in a minute."""
    _alerted_in_memory.pop(code, None)
    try:
        Alert.objects.filter(pk=code).delete()
    except Error:
        connection.close()


def _resolve_alerts(firing: set[str], degraded: Sequence[str]) -> list[tuple[str, str]]:
    """Mark alerts as resolved that are no longer found, if it was possible to look for them."""
    try:
        open_alerts = list(Alert.objects.filter(resolved_at=None).exclude(pk__in=firing))
        checked = [
            alert for alert in open_alerts if not degraded or alert.code.startswith(DEPENDENCY_DOWN_PREFIX)
        ]
        closed = [
            alert
            for alert in checked
            if Alert.objects.filter(pk=alert.pk, resolved_at=None).update(resolved_at=Now())
        ]
    except Error:
        connection.close()
        return []
    in_memory = [code for code in _alerted_in_memory if code not in firing]
    for code in in_memory:
        del _alerted_in_memory[code]
    return [*((alert.code, alert.title) for alert in closed), *((code, code) for code in in_memory)]


# --- Sending ---


def _send_notification(notification: AlertNotification) -> bool:
    """Send a notification; return whether anybody was reached."""
    log.critical("alert", status=notification.status, code=notification.code, title=notification.title)
    return any([_send_mail(notification), _post_webhook(notification)])


def _send_mail(notification: AlertNotification) -> bool:
    if not settings.ADMINS:
        return False
    url = f"{settings.SITE_URL}{reverse('diagnostics:overview')}"
    try:
        mail_admins(notification.subject, f"{notification.words}\n\n{url}\n")
    except OSError as problem:  # the mail library raises subclasses of it
        log.error("alert_mail_failed", code=notification.code, error=type(problem).__name__)
        return False
    return True


def _post_webhook(notification: AlertNotification) -> bool:
    """Post JSON with the field `text`, which chat services understand, and the parts for programs."""
    url = settings.DIAG_ALERT_WEBHOOK_URL
    if not url:
        return False
    body = {
        "text": f"{notification.subject}\n{notification.words}",
        "code": notification.code,
        "status": notification.status,
        "title": notification.title,
    }
    request = urllib.request.Request(  # noqa: S310 - our settings
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_SECONDS):  # noqa: S310 - our settings
            return True
    except (OSError, HTTPException) as problem:  # the URL may hold a token, so it is not logged
        log.error("alert_webhook_failed", code=notification.code, error=type(problem).__name__)
        return False


# --- Dead man's switch ---


def ping_heartbeat_url(seen: Snapshot) -> bool:
    """Tell the outside monitor that all is well. Return False if it is not, if it is too early, or without an answer."""
    global _called_at  # noqa: PLW0603 - one interval per process
    url = settings.HEARTBEAT_URL
    is_due = time.monotonic() - _called_at >= HEARTBEAT_INTERVAL_SECONDS
    if not url or not is_due or seen.summary.degraded:
        return False
    if find_critical_codes(seen):
        return False
    _called_at = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=WEBHOOK_TIMEOUT_SECONDS):  # noqa: S310 - our settings
            return True
    except (OSError, HTTPException) as problem:  # the URL may hold a token, so it is not logged
        log.error("heartbeat_url_unreachable", error=type(problem).__name__)
        return False
