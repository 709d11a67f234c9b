"""What staff see of one user besides the limits: the last calls that cost something, and what running turns hold (D20)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from billing import counters
from billing.errors import CountersDown
from billing.models import UsageRecord


@dataclass(frozen=True, kw_only=True)
class Use:
    call_id: str
    turn_ref: str
    occurred_at: datetime
    provider: str
    model: str
    purpose: str
    cost_microdollars: int
    cost_source: str


def recent_use(user_id: int, most: int = 20) -> list[Use]:
    """The newest first."""
    rows = UsageRecord.objects.filter(account__user=user_id).order_by("-occurred_at")[:most]
    return [
        Use(
            call_id=str(row.call_id),
            turn_ref=row.turn_ref,
            occurred_at=row.occurred_at,
            provider=row.provider,
            model=row.model,
            purpose=row.purpose,
            cost_microdollars=row.cost_microdollars,
            cost_source=row.cost_source,
        )
        for row in rows
    ]


def open_holds(user_id: int) -> list[counters.OpenHold] | None:
    """What running turns have reserved; None when Redis does not say."""
    try:
        return counters.open_holds(user_id)
    except CountersDown:
        return None
