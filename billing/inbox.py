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

from billing import gateway
from billing.errors import BillingError
from billing.models import StripeEvent

logger = logging.getLogger(__name__)
State = StripeEvent.State
APPLY = "billing.tasks.apply_event"
CLAIM = timedelta(seconds=120)  # longer than a worker may take for one event
FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(hours=1)
MOST_ATTEMPTS = 12
SWEPT_AFTER = timedelta(seconds=30)  # by then its own task should have begun
SWEEP = 500  # in one run; the rest in the next
PAYLOAD_KEPT = timedelta(days=180)


class ClaimLost(BillingError):
    """Another worker has it meanwhile; what this one did must not stay."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """One event in the hands of one worker."""

    pk: int
    event_id: str
    type: str
    livemode: bool
    attempt: int
    payload: dict[str, Any]

    @property
    def object(self) -> dict[str, Any]:
        """As it was when it happened: a hint of what to ask for, never what to believe (B14.4)."""
        found = self.payload.get("data", {}).get("object", {})
        return found if isinstance(found, dict) else {}

    def id_in(self, *names: str) -> str:
        """The id that stands there, or of what stands there; "" when nothing does."""
        found: Any = self.object
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found = found.get("id")
        return found if isinstance(found, str) else ""


def store(event: gateway.Event) -> int | None:
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
    mine = StripeEvent.objects.filter(event_id=event.id, attempts=0, state=State.RECEIVED)
    return mine.values_list("pk", flat=True).first()


def have_it_applied(pk: int) -> None:
    """By the task's name: tasks stand above. Without a broker the sweep finds it."""
    try:
        current_app.send_task(APPLY, args=[pk], retry=False)
    except OperationalError:
        logger.warning("Event %s waits for the sweep: no broker.", pk)


def claim(pk: int) -> Claimed | None:
    """One winner; also of what a worker took and never finished."""
    now = timezone.now()
    free = Q(state=State.RECEIVED, due_at__lte=now) | Q(state=State.PROCESSING, claimed_until__lt=now)
    taken = StripeEvent.objects.filter(free, pk=pk).update(
        state=State.PROCESSING, claimed_until=now + CLAIM, attempts=F("attempts") + 1
    )
    if not taken:
        return None
    row = StripeEvent.objects.get(pk=pk)
    return Claimed(
        pk=pk,
        event_id=row.event_id,
        type=row.type,
        livemode=row.livemode,
        attempt=row.attempts,
        payload=row.payload or {},
    )


def finish(event: Claimed, state: Literal["DONE", "IGNORED"]) -> None:
    """In the transaction of what it caused: both are there, or neither (B14.3)."""
    _move(event, state=state, processed_at=timezone.now(), last_error="")


def postpone(event: Claimed, error: str) -> timedelta | None:
    """How long it waits now; None when it has been tried often enough and is for staff."""
    if event.attempt >= MOST_ATTEMPTS:
        give_up(event, error)
        return None
    wait = min(FIRST_WAIT * (1 << (event.attempt - 1)), LONGEST_WAIT)
    _move(event, state=State.RECEIVED, due_at=timezone.now() + wait, last_error=error)
    return wait


def give_up(event: Claimed, error: str) -> None:
    _move(event, state=State.FAILED, last_error=error)


def _move(event: Claimed, *, state: str, **fields: Any) -> None:
    mine = StripeEvent.objects.filter(pk=event.pk, state=State.PROCESSING, attempts=event.attempt)
    if not mine.update(state=state, claimed_until=None, **fields):
        raise ClaimLost(event.event_id)


def waiting() -> list[int]:
    """What no task took in time, and what a worker took and never finished."""
    now = timezone.now()
    late = Q(state=State.RECEIVED, due_at__lte=now, received_at__lte=now - SWEPT_AFTER)
    lost = Q(state=State.PROCESSING, claimed_until__lt=now)
    rows = StripeEvent.objects.filter(late | lost).order_by("received_at")
    return list(rows.values_list("pk", flat=True)[:SWEEP])


def oldest_waiting_seconds() -> float:
    """How long the first of those that wait or are in hand has been here; 0 when none is."""
    waits = StripeEvent.objects.filter(state__in=[State.RECEIVED, State.PROCESSING])
    oldest = waits.order_by("received_at").values_list("received_at", flat=True).first()
    return (timezone.now() - oldest).total_seconds() if oldest else 0.0


def replay(pks: Iterable[int]) -> list[int]:
    """By staff, any event at any time (B14.6); what is in hand just now is left there."""
    again = StripeEvent.objects.filter(pk__in=list(pks), payload__isnull=False).exclude(
        state=State.PROCESSING
    )
    found = list(again.values_list("pk", flat=True))
    again.update(state=State.RECEIVED, attempts=0, due_at=timezone.now(), processed_at=None, last_error="")
    return found


def empty_old_payloads() -> int:
    """The row stays as proof, what it said goes (B3.2)."""
    old = StripeEvent.objects.filter(received_at__lt=timezone.now() - PAYLOAD_KEPT, payload__isnull=False)
    return old.update(payload=None)
