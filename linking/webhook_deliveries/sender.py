"""Whether and when a delivery that was not taken is tried again (L17)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from uuid import UUID

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
from linking.webhook_deliveries import signatures
from linking.webhook_deliveries.endpoints import get_signing_secrets
from linking.webhook_deliveries.http_client import DeliveryClient, DeliveryResponse

RETRY_DELAYS_SECONDS = (10, 30, 120, 600, 1800, 7200, 21_600)  # after the first try, the second, …
MAX_RETRY_DELAY_SECONDS = 21_600
RETRY_JITTER = 0.2
RETRYABLE_STATUSES = frozenset({408, 425, 429})
STATUS_GONE = 410


def is_retryable(status: int | None) -> bool:
    """None: nobody answered. Redirects are not followed, and other refusals are meant."""
    return status is None or status in RETRYABLE_STATUSES or status >= 500


def compute_delay_seconds(
    attempts: int, *, retry_after: str = "", now: datetime | None = None, chance: float | None = None
) -> float | None:
    """How long to wait after so many tries; None: that was the last. `chance` (0 to 1) spreads the crowd."""
    if attempts > len(RETRY_DELAYS_SECONDS):
        return None
    spread = 1 + RETRY_JITTER * (2 * (random.random() if chance is None else chance) - 1)  # noqa: S311 - no secret
    own = RETRY_DELAYS_SECONDS[attempts - 1] * spread
    return min(
        MAX_RETRY_DELAY_SECONDS * (1 + RETRY_JITTER),
        max(own, _parse_retry_after(retry_after, now or datetime.now(UTC))),
    )


def _parse_retry_after(retry_after: str, now: datetime) -> float:
    """Seconds or a date, honoured up to six hours; anything else says nothing."""
    if retry_after.isdecimal() and len(retry_after) < 10:
        return float(min(int(retry_after), MAX_RETRY_DELAY_SECONDS))
    try:
        moment = parsedate_to_datetime(retry_after)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ):  # a stranger's words: a year or an offset beyond all numbers
        return 0.0
    seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
    return min(max(0.0, seconds), float(MAX_RETRY_DELAY_SECONDS))


# MERGED deliveries.sending: Deliveries go out in order, are tried again, and stop when nobody is there any more (L17).

log = logging.getLogger(__name__)

BATCH_SIZE = 20
CLAIM_SECONDS = 60  # a try takes ten: whoever has not said by then how it went is gone, and it is sent again
IN_ORDER_ATTEMPTS = 3  # a later one waits for an earlier one that is still in its first tries
DEFAULT_CLIENT = DeliveryClient()


@dataclass(frozen=True, kw_only=True)
class _ClaimedDelivery:
    delivery_id: UUID
    endpoint_id: UUID
    attempts: int  # with this one
    url: str
    body: bytes
    secrets: list[str]


# On its way it has no status and no error: so an earlier one's last try in order is told from its failure.
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


def send_due_deliveries(poster: DeliveryClient | None = None) -> int:
    """Send what is due, a batch at a time; how many were tried."""
    tried = 0
    while due := _claim_batch():
        for one, posted in zip(due, asyncio.run(_post_batch(due, poster or DEFAULT_CLIENT)), strict=True):
            _record_outcome(one, posted)
        tried += len(due)
    return tried


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
        log.warning("the secret of delivery endpoint %s cannot be read: it is switched off", row.endpoint_id)
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


async def _post_batch(due: list[_ClaimedDelivery], poster: DeliveryClient) -> list[DeliveryResponse]:
    return await asyncio.gather(*(_post_delivery(one, poster) for one in due))


async def _post_delivery(one: _ClaimedDelivery, poster: DeliveryClient) -> DeliveryResponse:
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Pilothouse-Delivery/1",
        "Pilothouse-Delivery": str(one.delivery_id),
        "Pilothouse-Timestamp": str(now),
        "Pilothouse-Signature": signatures.build_signature_header(one.secrets, now, one.body),
    }
    url_safety.count_lookups_for(f"endpoint:{one.endpoint_id}")
    return await poster.post(one.url, one.body, headers)


# --- how it went -------------------------------------------------------------------------------------


def _record_outcome(one: _ClaimedDelivery, posted: DeliveryResponse) -> None:
    """Delivered, tried again later, or given up; and what that says of the endpoint."""
    said = {"last_status": posted.status, "last_error": posted.error}
    mine = Delivery.objects.filter(pk=one.delivery_id, state=Delivery.State.WAITING)
    if posted.status is not None and 200 <= posted.status < 300:
        mine.update(state=Delivery.State.DELIVERED, finished_at=Now(), **said)
        metrics.delivery_attempts.labels("delivered").inc()
        DeliveryEndpoint.objects.filter(pk=one.endpoint_id).exclude(failures=0).update(failures=0)
        return
    again = is_retryable(posted.status)
    delay = compute_delay_seconds(one.attempts, retry_after=posted.retry_after) if again else None
    if delay is None:
        mine.update(state=Delivery.State.FAILED, finished_at=Now(), **said)
    else:
        mine.update(next_try_at=Now() + timedelta(seconds=delay), **said)
    metrics.delivery_attempts.labels("failed" if delay is None else "again").inc()
    _count_failure(one.endpoint_id, posted.status)


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
    """Until its bot says the address anew; who made the key is told once."""
    on = DeliveryEndpoint.objects.filter(pk=endpoint_id, disabled_at=None)
    if not on.update(disabled_at=Now(), disabled_reason=reason):
        return
    log.warning("delivery endpoint %s was switched off: %s", endpoint_id, reason)
    row = DeliveryEndpoint.objects.select_related("created_by_key__created_by").get(pk=endpoint_id)
    if row.created_by_key is not None and row.created_by_key.created_by is not None:
        emails.send_endpoint_disabled_email(row.created_by_key.created_by, row.url, reason)


# --- for its bot -------------------------------------------------------------------------------------


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
    """The newest first, and where the next page begins."""
    rows = _bot_deliveries(bot).order_by("-number")
    if before is not None:
        rows = rows.filter(number__lt=before)
    found = list(rows[: limit + 1])
    return [_serialize_delivery(row) for row in found[:limit]], found[limit - 1].number if len(
        found
    ) > limit else None


def retry_delivery(bot: BotAccount, delivery_id: UUID) -> DeliveryShown:
    """Once more from the first try on, with the same id: receivers know it by that."""
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
    """What waits for an endpoint that was switched off waits for nobody."""
    old = Delivery.objects.filter(created_at__lt=Now() - timedelta(days=settings.DELIVERY_KEEP_DAYS))
    return old.exclude(state=Delivery.State.WAITING, endpoint__disabled_at=None).delete()[0]
