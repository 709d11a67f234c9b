"""Store Stripe events and move them through their states; the only writer of StripeEvent.

RECEIVED waits until `due_at`, PROCESSING is claimed for two minutes, DONE and IGNORED are final, FAILED waits for staff.
Every move checks the attempt number, so that a worker whose claim was lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import structlog
from celery import current_app
from django.db.models import F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing.errors import BillingError
from billing.models import StripeEvent
from billing.stripe import objects

log = structlog.get_logger(__name__)
EventState = StripeEvent.State
APPLY_EVENT_TASK = "billing.tasks.apply_event"
CLAIM_DURATION = timedelta(seconds=120)  # longer than the time limit of the task
FIRST_RETRY_DELAY = timedelta(seconds=10)
MAX_RETRY_DELAY = timedelta(hours=1)
MAX_ATTEMPTS = 12
SWEEP_AFTER = timedelta(seconds=30)  # by then its own task should have started
SWEEP_BATCH_SIZE = 500  # per run
PAYLOAD_RETENTION = timedelta(days=180)


class EventClaimLost(BillingError):
    """Another worker has claimed the event; this worker's changes must be rolled back."""


@dataclass(frozen=True, kw_only=True)
class ClaimedEvent:
    """An event claimed by this worker."""

    pk: int
    event_id: str
    type: str
    livemode: bool
    attempt: int
    payload: dict[str, Any]

    @property
    def event_object(self) -> dict[str, Any]:
        """Return the object as it was when the event happened: it says what to fetch, not what to believe."""
        found = self.payload.get("data", {}).get("object", {})
        return found if isinstance(found, dict) else {}

    def get_id(self, *names: str) -> str:
        """Return the id at this path, of a plain id or an expanded object; "" if there is none."""
        found: Any = self.event_object
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found = found.get("id")
        return found if isinstance(found, str) else ""


def store_event(event: objects.WebhookEvent) -> int | None:
    """Store the event and return its row id, or None if it is already being or has been applied."""
    row = StripeEvent(
        event_id=event.id,
        type=event.type[:100],
        api_version=event.api_version[:64],
        livemode=event.livemode,
        created=event.created_at,
        payload=dict(event.payload),
    )
    StripeEvent.objects.bulk_create([row], ignore_conflicts=True)
    mine = StripeEvent.objects.filter(event_id=event.id, attempts=0, state=EventState.RECEIVED)
    return mine.values_list("pk", flat=True).first()


def enqueue_event(pk: int) -> None:
    try:
        # By name, because tasks import this module. Without a broker, the sweep finds the event.
        current_app.send_task(APPLY_EVENT_TASK, args=[pk], retry=False)
    except OperationalError:
        log.warning("stripe_event_not_enqueued", stripe_event_pk=pk, error="broker_unavailable")


def claim_event(pk: int) -> ClaimedEvent | None:
    """Claim a due event, or one whose worker never finished; None if another worker has it."""
    now = timezone.now()
    claimable = Q(state=EventState.RECEIVED, due_at__lte=now) | Q(
        state=EventState.PROCESSING, claimed_until__lt=now
    )
    taken = StripeEvent.objects.filter(claimable, pk=pk).update(
        state=EventState.PROCESSING, claimed_until=now + CLAIM_DURATION, attempts=F("attempts") + 1
    )
    if not taken:
        return None
    row = StripeEvent.objects.get(pk=pk)
    return ClaimedEvent(
        pk=pk,
        event_id=row.event_id,
        type=row.type,
        livemode=row.livemode,
        attempt=row.attempts,
        payload=row.payload or {},
    )


def finish_event(event: ClaimedEvent, state: Literal["DONE", "IGNORED"]) -> None:
    """Mark the event as done. Call it inside the transaction of the event's effects."""
    _move_event(event, state=state, processed_at=timezone.now(), last_error="")


def postpone_event(event: ClaimedEvent, error: str) -> timedelta | None:
    """Schedule the next attempt and return the delay, or None if there were too many and staff must act."""
    if event.attempt >= MAX_ATTEMPTS:
        fail_event(event, error)
        return None
    wait = min(FIRST_RETRY_DELAY * (1 << (event.attempt - 1)), MAX_RETRY_DELAY)
    _move_event(event, state=EventState.RECEIVED, due_at=timezone.now() + wait, last_error=error)
    return wait


def fail_event(event: ClaimedEvent, error: str) -> None:
    _move_event(event, state=EventState.FAILED, last_error=error)


def _move_event(event: ClaimedEvent, *, state: str, **fields: Any) -> None:
    mine = StripeEvent.objects.filter(pk=event.pk, state=EventState.PROCESSING, attempts=event.attempt)
    if not mine.update(state=state, claimed_until=None, **fields):
        raise EventClaimLost(event.event_id)


def list_overdue_event_ids() -> list[int]:
    """List events that no task started in time and events whose worker never finished."""
    now = timezone.now()
    late = Q(state=EventState.RECEIVED, due_at__lte=now, received_at__lte=now - SWEEP_AFTER)
    lost = Q(state=EventState.PROCESSING, claimed_until__lt=now)
    rows = StripeEvent.objects.filter(late | lost).order_by("received_at")
    return list(rows.values_list("pk", flat=True)[:SWEEP_BATCH_SIZE])


def get_oldest_event_age_seconds() -> float:
    """Return the age of the oldest unfinished event, or 0."""
    unfinished = StripeEvent.objects.filter(state__in=[EventState.RECEIVED, EventState.PROCESSING])
    oldest = unfinished.order_by("received_at").values_list("received_at", flat=True).first()
    return (timezone.now() - oldest).total_seconds() if oldest else 0.0


def replay_events(pks: Iterable[int]) -> list[int]:
    """Reset events so that they are applied again, except those being processed. Return the ids that were reset."""
    replayable = StripeEvent.objects.filter(pk__in=list(pks), payload__isnull=False).exclude(
        state=EventState.PROCESSING
    )
    found = list(replayable.values_list("pk", flat=True))
    replayable.update(
        state=EventState.RECEIVED, attempts=0, due_at=timezone.now(), processed_at=None, last_error=""
    )
    return found


def clear_old_payloads() -> int:
    """Delete the payloads of old events but keep their rows as evidence."""
    old = StripeEvent.objects.filter(
        received_at__lt=timezone.now() - PAYLOAD_RETENTION, payload__isnull=False
    )
    return old.update(payload=None)
