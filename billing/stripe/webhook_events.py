"""What Stripe told us: stored as it came, claimed by one worker at a time, marked; the only writer of StripeEvent.

RECEIVED waits until `due_at`; PROCESSING is claimed for two minutes; DONE and IGNORED are over; FAILED waits for staff.
Whoever finishes an event names the attempt he made: a claim that was lost meanwhile finishes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from celery import current_app
from django.db.models import F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing.errors import BillingError
from billing.models import StripeEvent
from billing.stripe import objects

logger = logging.getLogger(__name__)
EventState = StripeEvent.State
APPLY_EVENT_TASK = "billing.tasks.apply_event"
CLAIM_DURATION = timedelta(seconds=120)  # longer than a worker may take for one event
FIRST_RETRY_DELAY = timedelta(seconds=10)
MAX_RETRY_DELAY = timedelta(hours=1)
MAX_ATTEMPTS = 12
SWEEP_AFTER = timedelta(seconds=30)  # by then its own task should have begun
SWEEP_BATCH_SIZE = 500  # in one run; the rest in the next
PAYLOAD_RETENTION = timedelta(days=180)


class EventClaimLost(BillingError):
    """Another worker has it meanwhile; what this one did must not stay."""


@dataclass(frozen=True, kw_only=True)
class ClaimedEvent:
    """One event in the hands of one worker."""

    pk: int
    event_id: str
    type: str
    livemode: bool
    attempt: int
    payload: dict[str, Any]

    @property
    def event_object(self) -> dict[str, Any]:
        """As it was when it happened: a hint of what to ask for, never what to believe (B14.4)."""
        found = self.payload.get("data", {}).get("object", {})
        return found if isinstance(found, dict) else {}

    def get_id(self, *names: str) -> str:
        """The id that stands there, or of what stands there; "" when nothing does."""
        found: Any = self.event_object
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found = found.get("id")
        return found if isinstance(found, str) else ""


def store_event(event: objects.WebhookEvent) -> int | None:
    """Its row's number; None when it was there before."""
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
    """By the task's name: tasks stand above. Without a broker the sweep finds it."""
    try:
        current_app.send_task(APPLY_EVENT_TASK, args=[pk], retry=False)
    except OperationalError:
        logger.warning("Event %s waits for the sweep: no broker.", pk)


def claim_event(pk: int) -> ClaimedEvent | None:
    """One winner; also of what a worker took and never finished."""
    now = timezone.now()
    free = Q(state=EventState.RECEIVED, due_at__lte=now) | Q(
        state=EventState.PROCESSING, claimed_until__lt=now
    )
    taken = StripeEvent.objects.filter(free, pk=pk).update(
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
    """In the transaction of what it caused: both are there, or neither (B14.3)."""
    _move_event(event, state=state, processed_at=timezone.now(), last_error="")


def postpone_event(event: ClaimedEvent, error: str) -> timedelta | None:
    """How long it waits now; None when it has been tried often enough and is for staff."""
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
    """What no task took in time, and what a worker took and never finished."""
    now = timezone.now()
    late = Q(state=EventState.RECEIVED, due_at__lte=now, received_at__lte=now - SWEEP_AFTER)
    lost = Q(state=EventState.PROCESSING, claimed_until__lt=now)
    rows = StripeEvent.objects.filter(late | lost).order_by("received_at")
    return list(rows.values_list("pk", flat=True)[:SWEEP_BATCH_SIZE])


def get_oldest_event_age_seconds() -> float:
    """How long the first of those that wait or are in hand has been here; 0 when none is."""
    waits = StripeEvent.objects.filter(state__in=[EventState.RECEIVED, EventState.PROCESSING])
    oldest = waits.order_by("received_at").values_list("received_at", flat=True).first()
    return (timezone.now() - oldest).total_seconds() if oldest else 0.0


def replay_events(pks: Iterable[int]) -> list[int]:
    """By staff, any event at any time (B14.6); what is in hand just now is left there."""
    again = StripeEvent.objects.filter(pk__in=list(pks), payload__isnull=False).exclude(
        state=EventState.PROCESSING
    )
    found = list(again.values_list("pk", flat=True))
    again.update(
        state=EventState.RECEIVED, attempts=0, due_at=timezone.now(), processed_at=None, last_error=""
    )
    return found


def clear_old_payloads() -> int:
    """The row stays as proof, what it said goes (B3.2)."""
    old = StripeEvent.objects.filter(
        received_at__lt=timezone.now() - PAYLOAD_RETENTION, payload__isnull=False
    )
    return old.update(payload=None)
