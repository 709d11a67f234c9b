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

from diagnostics.findings import Finding, Snapshot, evaluate
from diagnostics.models import Alert

log = logging.getLogger(__name__)

AGAIN = timedelta(hours=1)
WEBHOOK_SECONDS = 5.0
DOWN = "dependency_down:"

HEARTBEAT_URL_SECONDS = 60.0

_called_at = float("-inf")  # when HEARTBEAT_URL was called last
_told_here: dict[str, float] = {}  # what the database could not be asked to remember, and when


@dataclass(frozen=True, kw_only=True)
class News:
    code: str
    title: str
    status: str  # firing, resolved
    words: str

    @property
    def line(self) -> str:
        return f"{'Act now' if self.status == 'firing' else 'Over'}: {self.title}"


def is_wanted() -> bool:
    return bool(settings.ADMINS or settings.DIAG_ALERT_WEBHOOK_URL)


def critical_codes(seen: Snapshot) -> frozenset[str]:
    return frozenset(finding.code for finding in evaluate(seen) if finding.severity == "critical")


def tell(seen: Snapshot, *, only: Collection[str] | None = None) -> None:
    """What is new, or still there after an hour, and what is over; nothing that merely could not be read.

    `only`: the codes that may be told as new, for callers who look twice first.
    """
    critical = [finding for finding in evaluate(seen) if finding.severity == "critical"]
    for finding in critical:
        if only is not None and finding.code not in only:
            continue
        if _claim(finding) and not _sent(_firing(finding)):
            _release(finding.code)
    for code, title in _over({finding.code for finding in critical}, seen.summary.degraded):
        _sent(News(code=code, title=title, status="resolved", words="It is no longer found."))


def _firing(finding: Finding) -> News:
    numbers = ", ".join(f"{name} {number:g}" for name, number in finding.numbers.items())
    words = "\n".join(text for text in (finding.why, finding.suggested_action, numbers) if text)
    return News(code=finding.code, title=finding.title, status="firing", words=words)


# --- who has been told -------------------------------------------------------------------------------


def _claim(finding: Finding) -> bool:
    """By one conditional update, so that of two processes one tells; without a database by this process's memory."""
    try:
        known = Alert.objects.filter(pk=finding.code)
        if known.filter(told_at__lt=Now() - AGAIN).update(told_at=Now(), resolved_at=None):
            return True
        fields = {"title": finding.title, "told_at": Now()}
        return Alert.objects.get_or_create(pk=finding.code, defaults=fields)[1]
    except Error:
        connection.close()
        last = _told_here.get(finding.code)
        due = last is None or time.monotonic() - last > AGAIN.total_seconds()
        if due:
            _told_here[finding.code] = time.monotonic()
        return due


def _release(code: str) -> None:
    """Nobody could be reached: it is tried again in a minute."""
    _told_here.pop(code, None)
    try:
        Alert.objects.filter(pk=code).delete()
    except Error:
        connection.close()


def _over(firing: set[str], degraded: Sequence[str]) -> list[tuple[str, str]]:
    """Told of, and no longer found, although it could be looked for."""
    try:
        open_ones = list(Alert.objects.filter(resolved_at=None).exclude(pk__in=firing))
        seen = [one for one in open_ones if not degraded or one.code.startswith(DOWN)]
        closed = [
            one for one in seen if Alert.objects.filter(pk=one.pk, resolved_at=None).update(resolved_at=Now())
        ]
    except Error:
        connection.close()
        return []
    here = [code for code in _told_here if code not in firing]
    for code in here:
        del _told_here[code]
    return [*((one.code, one.title) for one in closed), *((code, code) for code in here)]


# --- telling -----------------------------------------------------------------------------------------


def _sent(news: News) -> bool:
    """Whether anybody was reached."""
    log.critical("%s (%s)", news.line, news.code)
    return any([_mailed(news), _posted(news)])


def _mailed(news: News) -> bool:
    if not settings.ADMINS:
        return False
    where = f"{settings.SITE_URL}{reverse('diagnostics:overview')}"
    try:
        mail_admins(news.line, f"{news.words}\n\n{where}\n")
    except OSError as problem:  # whatever the mail library raises is one
        log.error("the mail about %s was not sent: %s", news.code, type(problem).__name__)
        return False
    return True


def _posted(news: News) -> bool:
    """As JSON, with the one field `text` that chat services understand, and the parts for programs."""
    url = settings.DIAG_ALERT_WEBHOOK_URL
    if not url:
        return False
    body = {
        "text": f"{news.line}\n{news.words}",
        "code": news.code,
        "status": news.status,
        "title": news.title,
    }
    request = urllib.request.Request(  # noqa: S310 - our settings
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):  # noqa: S310 - our settings
            return True
    except (OSError, HTTPException) as problem:  # its address may hold a token
        log.error("the webhook about %s was not reached: %s", news.code, type(problem).__name__)
        return False


# --- the dead man's switch ------------------------------------------------------------------------------


def call_heartbeat_url(seen: Snapshot) -> bool:
    """Show the outside that all is well; False when it is not, when it is too early, or when nobody answered."""
    global _called_at  # noqa: PLW0603 - one pace per process
    url = settings.HEARTBEAT_URL
    is_due = time.monotonic() - _called_at >= HEARTBEAT_URL_SECONDS
    if not url or not is_due or seen.summary.degraded:
        return False
    if critical_codes(seen):
        return False
    _called_at = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=WEBHOOK_SECONDS):  # noqa: S310 - our settings
            return True
    except (OSError, HTTPException) as problem:  # its address may hold a token
        log.error("heartbeat_url_unreachable: %s", type(problem).__name__)
        return False
