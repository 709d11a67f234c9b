"""Deliver audit events to a webhook and to syslog from outbox rows: an outage delays events but loses none.

A sink that fails is retried after a pause that grows to ten minutes, one batch at a time, for as long as its events
are kept.
"""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, timedelta
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from diagnostics.audit import list_configured_sinks
from diagnostics.models import AuditDelivery, AuditEvent, AuditSink

log = structlog.get_logger(__name__)

BATCH_SIZE = 100
MAX_BATCHES = 20  # per run; the next run continues
SEND_TIMEOUT_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5, 600
_LOCK_NAMESPACE = 7_261_404
SYSLOG_PRIORITY = 10 * 8 + 5  # authpriv.notice


def deliver_pending_events() -> int:
    """Send pending events to each sink whose pause is over; return how many were sent."""
    return sum(_deliver_to_sink(name) for name in list_configured_sinks())


def _deliver_to_sink(name: str) -> int:
    delivered = 0
    for _number in range(MAX_BATCHES):
        count = _deliver_batch(name)
        delivered += count
        if count < BATCH_SIZE:
            break
    return delivered


def _deliver_batch(name: str) -> int:
    """Deliver one batch, oldest first; the lock keeps two processes from sending the same events."""
    with transaction.atomic():
        if not _try_lock(name) or _is_paused(name):
            return 0
        pending = list(
            AuditDelivery.objects.filter(sink=name).select_related("event").order_by("id")[:BATCH_SIZE]
        )
        if not pending:
            return 0
        try:
            SINKS[name]([row.event for row in pending])
        except (OSError, ValueError) as problem:  # the message may hold a token: only the type is kept
            _record_failure(name, problem)
            return 0
        AuditDelivery.objects.filter(pk__in=[row.pk for row in pending]).delete()
        AuditSink.objects.update_or_create(
            name=name, defaults={"failures": 0, "problem": "", "delivered_at": Now(), "next_try_at": None}
        )
    return len(pending)


def _try_lock(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", [_LOCK_NAMESPACE, name])
        return bool(cursor.fetchone()[0])


def _is_paused(name: str) -> bool:
    return AuditSink.objects.filter(name=name, next_try_at__gt=Now()).exists()


def _record_failure(name: str, problem: Exception) -> None:
    sink, _made = AuditSink.objects.get_or_create(name=name)
    sink.failures += 1
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(sink.failures - 1, 20), LONGEST_PAUSE_SECONDS)
    sink.next_try_at = timezone.now() + timedelta(seconds=pause)
    status = getattr(problem, "code", "")
    sink.problem = f"{type(problem).__name__} {status}".strip()
    sink.save()
    log.error("audit_delivery_failed", sink=name, problem=sink.problem, failures=sink.failures)


def serialize_event(event: AuditEvent) -> dict[str, object]:
    """Serialize an event for every sink and for the CSV file."""
    return {
        "id": str(event.pk),
        "at": event.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "category": event.category,
        "action": event.action,
        "outcome": event.outcome,
        "actor": event.actor,
        "actor_id": event.admin_id,
        "address": event.address,
        "target_type": event.target_type,
        "target_id": event.target_id,
        "reason": event.reason,
        "details": event.result,
    }


# --- Sinks ---


def _post_webhook(events: Sequence[AuditEvent]) -> None:
    """POST the batch as JSON; any answer but 2xx is a failure."""
    headers = {"Content-Type": "application/json"}
    if settings.AUDIT_WEBHOOK_TOKEN:
        headers["Authorization"] = f"Bearer {settings.AUDIT_WEBHOOK_TOKEN}"
    body = json.dumps({"events": [serialize_event(event) for event in events]}).encode()
    request = urllib.request.Request(settings.AUDIT_WEBHOOK_URL, data=body, headers=headers)  # noqa: S310 - our settings
    with urllib.request.urlopen(request, timeout=SEND_TIMEOUT_SECONDS):  # noqa: S310 - our settings
        pass


def _send_syslog(events: Sequence[AuditEvent]) -> None:
    """Send RFC 5424 lines with a JSON message: framed by octet count on tcp and tls, one datagram each on udp."""
    parts = urlsplit(settings.AUDIT_SYSLOG_ADDRESS)
    host, port = parts.hostname or "", parts.port or {"udp": 514, "tcp": 601, "tls": 6514}[parts.scheme]
    lines = [_syslog_line(event) for event in events]
    if parts.scheme == "udp":
        family, _kind, _proto, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as sender:
            for line in lines:
                sender.sendto(line, address)
        return
    stream = socket.create_connection((host, port), timeout=SEND_TIMEOUT_SECONDS)
    with closing(stream):
        if parts.scheme == "tls":
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
        with closing(stream):
            stream.sendall(b"".join(b"%d %s" % (len(line), line) for line in lines))
            stream.shutdown(socket.SHUT_WR)  # undelivered data raises an error here, not at the next event


def _syslog_line(event: AuditEvent) -> bytes:
    fields = serialize_event(event)
    head = (
        f"<{SYSLOG_PRIORITY}>1 {fields['at']} {socket.gethostname()} pilothouse - {event.category or '-'} -"
    )
    return f"{head} {json.dumps(fields)}".encode()


SINKS: dict[str, Callable[[Sequence[AuditEvent]], None]] = {"webhook": _post_webhook, "syslog": _send_syslog}
