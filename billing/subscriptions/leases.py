"""The right to change an account's plan: one at a time, whoever asks and from wherever (B11.4, step 3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from django.db.models import Q
from django.utils import timezone

from billing.errors import ChangeInProgress
from billing.models import Account

LEASE = timedelta(
    seconds=120
)  # four times what a request may spend at Stripe: only a dead process lets it run out


@contextmanager
def alone(account_id: int) -> Iterator[None]:
    """Given back in all outcomes; who finds it taken does not wait."""
    token, now = uuid4(), timezone.now()
    free = Q(change_token=None) | Q(change_lease_until__lt=now)
    taken = Account.objects.filter(free, pk=account_id).update(
        change_token=token, change_lease_until=now + LEASE
    )
    if not taken:
        raise ChangeInProgress
    try:
        yield
    finally:
        Account.objects.filter(pk=account_id, change_token=token).update(
            change_token=None, change_lease_until=None
        )
