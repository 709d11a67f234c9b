"""Moves of a top-up: one conditional update each, from where B10.3 lets it come."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from billing.models import TopUp

State = TopUp.State
REACHED_FROM: dict[str, tuple[str, ...]] = {
    State.OPEN: (State.CREATED,),
    # Late is still paid: money that came after all belongs to its owner.
    State.PAID: (State.CREATED, State.OPEN, State.EXPIRED, State.FAILED),
    State.FAILED: (State.CREATED, State.OPEN),
    State.EXPIRED: (State.CREATED, State.OPEN),
    State.REVIEW: (State.CREATED, State.OPEN, State.EXPIRED, State.FAILED),
}
SETTLED = (State.PAID, State.PARTLY_REVERSED, State.REVERSED)  # among these by what was taken back of it


def move(top_up_id: UUID, to: str, **fields: Any) -> bool:
    """False when it was somewhere else already: whoever was first has done what follows."""
    mine = TopUp.objects.filter(pk=top_up_id, state__in=REACHED_FROM[to])
    return bool(mine.update(state=to, **fields))


def settle(top_up: TopUp, reversed_cents: int) -> None:
    """Paid, in part or wholly taken back; any of them may return (B10.3)."""
    if reversed_cents <= 0:
        to = State.PAID
    elif reversed_cents < top_up.amount_cents:
        to = State.PARTLY_REVERSED
    else:
        to = State.REVERSED
    TopUp.objects.filter(pk=top_up.pk, state__in=SETTLED).update(state=to)
