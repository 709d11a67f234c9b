"""Tell people who do not look at a page: critical findings by mail and webhook, once an hour each and once when over (D12).

While nothing critical is found, HEARTBEAT_URL is called once a minute: an outside monitor learns by its
silence what nobody here is left to tell.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException

from django.conf import settings
from django.core.mail import mail_admins
from django.db import Error, connection
from django.db.models.functions import Now
from django.urls import reverse

from diagnostics.findings.figures import Snapshot
from diagnostics.findings.rules import Finding, evaluate_findings
from diagnostics.models import Alert

log = logging.getLogger(__name__)

REPEAT_AFTER = timedelta(hours=1)
WEBHOOK_TIMEOUT_SECONDS = 5.0
DEPENDENCY_DOWN_PREFIX = "dependency_down:"

HEARTBEAT_INTERVAL_SECONDS = 60.0

_called_at = float("-inf")  # when HEARTBEAT_URL was called last
_alerted_in_memory: dict[str, float] = {}  # what the database could not be asked to remember, and when


@dataclass(frozen=True, kw_only=True)
class AlertNotification:
    code: str
    title: str
    status: str  # firing, resolved
    words: str

    @property
    def subject(self) -> str:
        return f"{'Act now' if self.status == 'firing' else 'Over'}: {self.title}"


def has_recipients() -> bool:
    return bool(settings.ADMINS or settings.DIAG_ALERT_WEBHOOK_URL)


def find_critical_codes(seen: Snapshot) -> frozenset[str]:
    return frozenset(finding.code for finding in evaluate_findings(seen) if finding.severity == "critical")


def send_alerts(seen: Snapshot, *, only: Collection[str] | None = None) -> None:
    """What is new, or still there after an hour, and what is over; nothing that merely could not be read.

    `only`: the codes that may be told as new, for callers who look twice first.
    """
    critical = [finding for finding in evaluate_findings(seen) if finding.severity == "critical"]
    for finding in critical:
        if only is not None and finding.code not in only:
            continue
        if _claim_alert(finding) and not _send_notification(_build_firing(finding)):
            _release_alert(finding.code)
    for code, title in _resolve_alerts({finding.code for finding in critical}, seen.summary.degraded):
        _send_notification(
            AlertNotification(code=code, title=title, status="resolved", words="It is no longer found.")
        )


def _build_firing(finding: Finding) -> AlertNotification:
    numbers = ", ".join(f"{name} {number:g}" for name, number in finding.numbers.items())
    words = "\n".join(text for text in (finding.why, finding.suggested_action, numbers) if text)
    return AlertNotification(code=finding.code, title=finding.title, status="firing", words=words)


# --- who has been told -------------------------------------------------------------------------------


def _claim_alert(finding: Finding) -> bool:
    """By one conditional update, so that of two processes one tells; without a database by this process's memory."""
    try:
        known = Alert.objects.filter(pk=finding.code)
        if known.filter(told_at__lt=Now() - REPEAT_AFTER).update(told_at=Now(), resolved_at=None):
            return True
        fields = {"title": finding.title, "told_at": Now()}
        return Alert.objects.get_or_create(pk=finding.code, defaults=fields)[1]
    except Error:
        connection.close()
        last = _alerted_in_memory.get(finding.code)
        due = last is None or time.monotonic() - last > REPEAT_AFTER.total_seconds()
        if due:
            _alerted_in_memory[finding.code] = time.monotonic()
        return due


def _release_alert(code: str) -> None:
    """Nobody could be reached: it is tried again in a minute."""
    _alerted_in_memory.pop(code, None)
    try:
        Alert.objects.filter(pk=code).delete()
    except Error:
        connection.close()


def _resolve_alerts(firing: set[str], degraded: Sequence[str]) -> list[tuple[str, str]]:
    """Told of, and no longer found, although it could be looked for."""
    try:
        open_ones = list(Alert.objects.filter(resolved_at=None).exclude(pk__in=firing))
        seen = [one for one in open_ones if not degraded or one.code.startswith(DEPENDENCY_DOWN_PREFIX)]
        closed = [
            one for one in seen if Alert.objects.filter(pk=one.pk, resolved_at=None).update(resolved_at=Now())
        ]
    except Error:
        connection.close()
        return []
    here = [code for code in _alerted_in_memory if code not in firing]
    for code in here:
        del _alerted_in_memory[code]
    return [*((one.code, one.title) for one in closed), *((code, code) for code in here)]


# --- telling -----------------------------------------------------------------------------------------


def _send_notification(news: AlertNotification) -> bool:
    """Whether anybody was reached."""
    log.critical("%s (%s)", news.subject, news.code)
    return any([_send_mail(news), _post_webhook(news)])


def _send_mail(news: AlertNotification) -> bool:
    if not settings.ADMINS:
        return False
    where = f"{settings.SITE_URL}{reverse('diagnostics:overview')}"
    try:
        mail_admins(news.subject, f"{news.words}\n\n{where}\n")
    except OSError as problem:  # whatever the mail library raises is one
        log.error("the mail about %s was not sent: %s", news.code, type(problem).__name__)
        return False
    return True


def _post_webhook(news: AlertNotification) -> bool:
    """As JSON, with the one field `text` that chat services understand, and the parts for programs."""
    url = settings.DIAG_ALERT_WEBHOOK_URL
    if not url:
        return False
    body = {
        "text": f"{news.subject}\n{news.words}",
        "code": news.code,
        "status": news.status,
        "title": news.title,
    }
    request = urllib.request.Request(  # noqa: S310 - our settings
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_SECONDS):  # noqa: S310 - our settings
            return True
    except (OSError, HTTPException) as problem:  # its address may hold a token
        log.error("the webhook about %s was not reached: %s", news.code, type(problem).__name__)
        return False


# --- the dead man's switch ------------------------------------------------------------------------------


def ping_heartbeat_url(seen: Snapshot) -> bool:
    """Show the outside that all is well; False when it is not, when it is too early, or when nobody answered."""
    global _called_at  # noqa: PLW0603 - one pace per process
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
    except (OSError, HTTPException) as problem:  # its address may hold a token
        log.error("heartbeat_url_unreachable: %s", type(problem).__name__)
        return False
