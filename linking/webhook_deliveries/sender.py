"""Send webhook deliveries in order, retry failed ones, and disable endpoints that stay unreachable."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from config.core import url_safety
from config.core.encryption import DecryptionFailed
from config.core.errors import NotFound
from copilot.realtime import payloads
from linking import emails, metrics
from linking.conversations.services import BotAccount
from linking.models import Delivery, DeliveryEndpoint
from linking.webhook_deliveries import endpoints
from linking.webhook_deliveries.endpoints import get_signing_secrets
from linking.webhook_deliveries.http_client import DeliveryClient, DeliveryResponse

log = structlog.get_logger(__name__)

BATCH_SIZE = 20
CLAIM_SECONDS = (
    60  # an attempt takes at most ten; after this its process counts as dead, and it is sent again
)
IN_ORDER_ATTEMPTS = 3  # a delivery waits for an earlier one that has had fewer attempts than this
DEFAULT_CLIENT = DeliveryClient()
RETRY_DELAYS_SECONDS = (10, 30, 120, 600, 1800, 7200, 21_600)  # after the first attempt, the second, …
MAX_RETRY_DELAY_SECONDS = 21_600
RETRY_JITTER = 0.2
RETRYABLE_STATUSES = frozenset({408, 425, 429})
STATUS_GONE = 410


def is_retryable(status: int | None) -> bool:
    """Return True if a retry may help; a status of None means that there was no response."""
    return status is None or status in RETRYABLE_STATUSES or status >= 500


def compute_delay_seconds(
    attempts: int, *, retry_after: str = "", now: datetime | None = None, chance: float | None = None
) -> float | None:
    """Return the delay after this many attempts, or None if that was the last. `chance` (0 to 1) is the jitter."""
    if attempts > len(RETRY_DELAYS_SECONDS):
        return None
    spread = 1 + RETRY_JITTER * (2 * (random.random() if chance is None else chance) - 1)  # noqa: S311 - no secret
    own = RETRY_DELAYS_SECONDS[attempts - 1] * spread
    return min(
        MAX_RETRY_DELAY_SECONDS * (1 + RETRY_JITTER),
        max(own, _parse_retry_after(retry_after, now or datetime.now(UTC))),
    )


def _parse_retry_after(retry_after: str, now: datetime) -> float:
    """Parse seconds or an HTTP date, limited to six hours; anything else counts as 0."""
    if retry_after.isdecimal() and len(retry_after) < 10:
        return float(min(int(retry_after), MAX_RETRY_DELAY_SECONDS))
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, TypeError, OverflowError):  # the value is the receiver's, and can be anything
        return 0.0
    seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
    return min(max(0.0, seconds), float(MAX_RETRY_DELAY_SECONDS))


# --- Sending ---


@dataclass(frozen=True, kw_only=True)
class _ClaimedDelivery:
    delivery_id: UUID
    endpoint_id: UUID
    attempts: int  # including this one
    url: str
    body: bytes
    secrets: list[str]


# Claiming clears status and error, so that an attempt in flight can be told from one that failed.
_CLAIM_SQL = """
UPDATE linking_delivery d SET attempts = attempts + 1, next_try_at = now() + make_interval(secs => %(held)s),
    last_status = NULL, last_error = ''
WHERE d.id IN (
    SELECT w.id FROM linking_delivery w JOIN linking_deliveryendpoint e ON e.id = w.endpoint_id
    WHERE w.state = 'waiting' AND w.next_try_at <= now() AND e.disabled_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM linking_delivery earlier
                      WHERE earlier.conversation_id = w.conversation_id AND earlier.number < w.number
                        AND earlier.endpoint_id = w.endpoint_id AND earlier.state = 'waiting'
                        AND (earlier.attempts < %(in_order)s OR (earlier.attempts = %(in_order)s
                             AND earlier.last_status IS NULL AND earlier.last_error = '')))
    ORDER BY w.next_try_at LIMIT %(batch)s FOR UPDATE OF w SKIP LOCKED)
RETURNING d.id
"""


def send_due_deliveries(client: DeliveryClient | None = None) -> int:
    """Send all due deliveries in batches; return the number of attempts."""
    attempted = 0
    while due := _claim_batch():
        responses = asyncio.run(_post_batch(due, client or DEFAULT_CLIENT))
        for delivery, response in zip(due, responses, strict=True):
            _record_outcome(delivery, response)
        attempted += len(due)
    return attempted


def _claim_batch() -> list[_ClaimedDelivery]:
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM_SQL, {"held": CLAIM_SECONDS, "in_order": IN_ORDER_ATTEMPTS, "batch": BATCH_SIZE}
        )
        ids = [row[0] for row in cursor.fetchall()]
    rows = Delivery.objects.filter(pk__in=ids).order_by("number").select_related("endpoint")
    return [due for row in rows if (due := _load_claimed(row)) is not None]


def _load_claimed(row: Delivery) -> _ClaimedDelivery | None:
    try:
        secrets = get_signing_secrets(row.endpoint)
    except DecryptionFailed:
        log.warning("delivery_secret_unreadable", endpoint_id=row.endpoint_id)
        _disable_endpoint(row.endpoint_id, "unreadable")
        return None
    return _ClaimedDelivery(
        delivery_id=row.pk,
        endpoint_id=row.endpoint_id,
        attempts=row.attempts,
        url=row.endpoint.url,
        body=row.body.encode(),
        secrets=secrets,
    )


async def _post_batch(due: list[_ClaimedDelivery], client: DeliveryClient) -> list[DeliveryResponse]:
    return await asyncio.gather(*(_post_delivery(delivery, client) for delivery in due))


async def _post_delivery(delivery: _ClaimedDelivery, client: DeliveryClient) -> DeliveryResponse:
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Pilothouse-Delivery/1",
        "Pilothouse-Delivery": str(delivery.delivery_id),
        "Pilothouse-Timestamp": str(now),
        "Pilothouse-Signature": endpoints.build_signature_header(delivery.secrets, now, delivery.body),
    }
    url_safety.count_lookups_for(f"endpoint:{delivery.endpoint_id}")
    return await client.post(delivery.url, delivery.body, headers)


# --- Outcomes ---


def _record_outcome(delivery: _ClaimedDelivery, response: DeliveryResponse) -> None:
    """Mark the delivery as delivered, due again later or failed, and count the endpoint's failures."""
    result = {"last_status": response.status, "last_error": response.error}
    waiting = Delivery.objects.filter(pk=delivery.delivery_id, state=Delivery.State.WAITING)
    if response.status is not None and 200 <= response.status < 300:
        waiting.update(state=Delivery.State.DELIVERED, finished_at=Now(), **result)
        metrics.delivery_attempts.labels("delivered").inc()
        DeliveryEndpoint.objects.filter(pk=delivery.endpoint_id).exclude(failures=0).update(failures=0)
        return
    retryable = is_retryable(response.status)
    delay = compute_delay_seconds(delivery.attempts, retry_after=response.retry_after) if retryable else None
    if delay is None:
        waiting.update(state=Delivery.State.FAILED, finished_at=Now(), **result)
    else:
        waiting.update(next_try_at=Now() + timedelta(seconds=delay), **result)
    metrics.delivery_attempts.labels("failed" if delay is None else "again").inc()
    _count_failure(delivery.endpoint_id, response.status)


def _count_failure(endpoint_id: UUID, status: int | None) -> None:
    if status == STATUS_GONE:
        _disable_endpoint(endpoint_id, "gone")
        return
    with transaction.atomic():
        rows = DeliveryEndpoint.objects.filter(pk=endpoint_id)
        rows.update(failures=F("failures") + 1)
        failures = rows.values_list("failures", flat=True).first() or 0
    if failures >= settings.DELIVERY_MAX_FAILURES:
        _disable_endpoint(endpoint_id, "failing")


def _disable_endpoint(endpoint_id: UUID, reason: str) -> None:
    """Disable an endpoint until its bot sets the URL again, and mail the creator of its key."""
    enabled = DeliveryEndpoint.objects.enabled().filter(pk=endpoint_id)
    if not enabled.update(disabled_at=Now(), disabled_reason=reason):
        return
    log.warning("delivery_endpoint_disabled", endpoint_id=endpoint_id, reason=reason)
    row = DeliveryEndpoint.objects.select_related("created_by_key__created_by").get(pk=endpoint_id)
    if row.created_by_key is not None and row.created_by_key.created_by is not None:
        emails.send_endpoint_disabled_email(row.created_by_key.created_by, row.url, reason)


# --- Queries for the bot API ---


@dataclass(frozen=True, kw_only=True)
class DeliveryShown:
    id: str
    event: str
    turn_id: str
    state: str
    attempts: int
    last_status: int | None
    last_error: str | None
    created_at: str
    finished_at: str | None


def list_deliveries(
    bot: BotAccount, *, before: int | None, limit: int
) -> tuple[list[DeliveryShown], int | None]:
    """Return a page of deliveries, newest first, and the `before` value of the next page."""
    rows = _bot_deliveries(bot).order_by("-number")
    if before is not None:
        rows = rows.filter(number__lt=before)
    found = list(rows[: limit + 1])
    next_before = found[limit - 1].number if len(found) > limit else None
    return [_serialize_delivery(row) for row in found[:limit]], next_before


def retry_delivery(bot: BotAccount, delivery_id: UUID) -> DeliveryShown:
    """Start the delivery again from its first attempt, with the same id so that receivers can recognize it."""
    fresh = {"state": Delivery.State.WAITING, "attempts": 0, "finished_at": None, "next_try_at": Now()}
    if not _bot_deliveries(bot).filter(pk=delivery_id).update(**fresh):
        raise NotFound
    return _serialize_delivery(_bot_deliveries(bot).get(pk=delivery_id))


def _bot_deliveries(bot: BotAccount) -> QuerySet[Delivery]:
    return Delivery.objects.filter(endpoint__platform=bot.platform, endpoint__bot_account=bot.bot_account)


def _serialize_delivery(row: Delivery) -> DeliveryShown:
    return DeliveryShown(
        id=str(row.pk),
        event=row.event,
        turn_id=str(row.turn_id),
        state=row.state,
        attempts=row.attempts,
        last_status=row.last_status,
        last_error=row.last_error or None,
        created_at=payloads.format_timestamp(row.created_at),
        finished_at=payloads.format_timestamp(row.finished_at) if row.finished_at else None,
    )


def purge_deliveries() -> int:
    """Delete old deliveries, including waiting ones of disabled endpoints."""
    old = Delivery.objects.filter(created_at__lt=Now() - timedelta(days=settings.DELIVERY_KEEP_DAYS))
    return old.exclude(state=Delivery.State.WAITING, endpoint__disabled_at=None).delete()[0]
