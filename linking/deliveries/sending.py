"""Deliveries go out in order, are tried again, and stop when nobody is there any more (L17)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from copilot import queries
from copilot.addresses import connecting
from copilot.errors import NotFound
from copilot.sealing import Unreadable
from linking import mails, metrics
from linking.conversations import Bot
from linking.deliveries import backoff, signing
from linking.deliveries.endpoints import secrets_of
from linking.deliveries.posting import Posted, Poster
from linking.models import Delivery, DeliveryEndpoint

log = logging.getLogger(__name__)

BATCH = 20
HELD_SECONDS = 60  # a try takes ten: whoever has not said by then how it went is gone, and it is sent again
IN_ORDER_ATTEMPTS = 3  # a later one waits for an earlier one that is still in its first tries
POSTER = Poster()


@dataclass(frozen=True, kw_only=True)
class _Due:
    delivery_id: UUID
    endpoint_id: UUID
    attempts: int  # with this one
    url: str
    body: bytes
    secrets: list[str]


# On its way it has no status and no error: so an earlier one's last try in order is told from its failure.
_CLAIM = """
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


def send_due(poster: Poster | None = None) -> int:
    """Send what is due, a batch at a time; how many were tried."""
    tried = 0
    while due := _claim():
        for one, posted in zip(due, asyncio.run(_post_all(due, poster or POSTER)), strict=True):
            _mark(one, posted)
        tried += len(due)
    return tried


def _claim() -> list[_Due]:
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"held": HELD_SECONDS, "in_order": IN_ORDER_ATTEMPTS, "batch": BATCH})
        ids = [row[0] for row in cursor.fetchall()]
    rows = Delivery.objects.filter(pk__in=ids).order_by("number").select_related("endpoint")
    return [due for row in rows if (due := _due(row)) is not None]


def _due(row: Delivery) -> _Due | None:
    try:
        secrets = secrets_of(row.endpoint)
    except Unreadable:
        log.warning("the secret of delivery endpoint %s cannot be read: it is switched off", row.endpoint_id)
        _switch_off(row.endpoint_id, "unreadable")
        return None
    return _Due(
        delivery_id=row.pk,
        endpoint_id=row.endpoint_id,
        attempts=row.attempts,
        url=row.endpoint.url,
        body=row.body.encode(),
        secrets=secrets,
    )


async def _post_all(due: list[_Due], poster: Poster) -> list[Posted]:
    return await asyncio.gather(*(_post(one, poster) for one in due))


async def _post(one: _Due, poster: Poster) -> Posted:
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Pilothouse-Delivery/1",
        "Pilothouse-Delivery": str(one.delivery_id),
        "Pilothouse-Timestamp": str(now),
        "Pilothouse-Signature": signing.signatures(one.secrets, now, one.body),
    }
    connecting.count_lookups_for(f"endpoint:{one.endpoint_id}")
    return await poster.post(one.url, one.body, headers)


# --- how it went -------------------------------------------------------------------------------------


def _mark(one: _Due, posted: Posted) -> None:
    """Delivered, tried again later, or given up; and what that says of the endpoint."""
    said = {"last_status": posted.status, "last_error": posted.error}
    mine = Delivery.objects.filter(pk=one.delivery_id, state=Delivery.State.WAITING)
    if posted.status is not None and 200 <= posted.status < 300:
        mine.update(state=Delivery.State.DELIVERED, finished_at=Now(), **said)
        metrics.deliveries.labels("delivered").inc()
        DeliveryEndpoint.objects.filter(pk=one.endpoint_id).exclude(failures=0).update(failures=0)
        return
    again = backoff.may_be_tried_again(posted.status)
    delay = backoff.delay_seconds(one.attempts, retry_after=posted.retry_after) if again else None
    if delay is None:
        mine.update(state=Delivery.State.FAILED, finished_at=Now(), **said)
    else:
        mine.update(next_try_at=Now() + timedelta(seconds=delay), **said)
    metrics.deliveries.labels("failed" if delay is None else "again").inc()
    _count_failure(one.endpoint_id, posted.status)


def _count_failure(endpoint_id: UUID, status: int | None) -> None:
    if status == backoff.GONE:
        _switch_off(endpoint_id, "gone")
        return
    with transaction.atomic():
        rows = DeliveryEndpoint.objects.filter(pk=endpoint_id)
        rows.update(failures=F("failures") + 1)
        failures = rows.values_list("failures", flat=True).first() or 0
    if failures >= settings.DELIVERY_MAX_FAILURES:
        _switch_off(endpoint_id, "failing")


def _switch_off(endpoint_id: UUID, reason: str) -> None:
    """Until its bot says the address anew; who made the key is told once."""
    on = DeliveryEndpoint.objects.filter(pk=endpoint_id, disabled_at=None)
    if not on.update(disabled_at=Now(), disabled_reason=reason):
        return
    log.warning("delivery endpoint %s was switched off: %s", endpoint_id, reason)
    row = DeliveryEndpoint.objects.select_related("created_by_key__created_by").get(pk=endpoint_id)
    if row.created_by_key is not None and row.created_by_key.created_by is not None:
        mails.say_switched_off(row.created_by_key.created_by, row.url, reason)


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


def page(bot: Bot, *, before: int | None, limit: int) -> tuple[list[DeliveryShown], int | None]:
    """The newest first, and where the next page begins."""
    rows = _of(bot).order_by("-number")
    if before is not None:
        rows = rows.filter(number__lt=before)
    found = list(rows[: limit + 1])
    return [_shown(row) for row in found[:limit]], found[limit - 1].number if len(found) > limit else None


def redeliver(bot: Bot, delivery_id: UUID) -> DeliveryShown:
    """Once more from the first try on, with the same id: receivers know it by that."""
    fresh = {"state": Delivery.State.WAITING, "attempts": 0, "finished_at": None, "next_try_at": Now()}
    if not _of(bot).filter(pk=delivery_id).update(**fresh):
        raise NotFound
    return _shown(_of(bot).get(pk=delivery_id))


def _of(bot: Bot) -> QuerySet[Delivery]:
    return Delivery.objects.filter(endpoint__platform=bot.platform, endpoint__bot_account=bot.bot_account)


def _shown(row: Delivery) -> DeliveryShown:
    return DeliveryShown(
        id=str(row.pk),
        event=row.event,
        turn_id=str(row.turn_id),
        state=row.state,
        attempts=row.attempts,
        last_status=row.last_status,
        last_error=row.last_error or None,
        created_at=queries.instant(row.created_at),
        finished_at=queries.instant(row.finished_at) if row.finished_at else None,
    )


def purge_deliveries() -> int:
    """What waits for an endpoint that was switched off waits for nobody."""
    old = Delivery.objects.filter(created_at__lt=Now() - timedelta(days=settings.DELIVERY_KEEP_DAYS))
    return old.exclude(state=Delivery.State.WAITING, endpoint__disabled_at=None).delete()[0]
