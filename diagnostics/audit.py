"""The record of repairs: written once, never changed (D8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Value
from django.db.models.functions import Now

from diagnostics.models import RepairAudit

REAPER = "reaper"
Outcome = RepairAudit.Outcome


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who repairs: an administrator, or the reaper."""

    name: str
    admin_id: int | None = None
    address: str | None = None


THE_REAPER = Actor(name=REAPER)


@dataclass(frozen=True, kw_only=True)
class State:
    status: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a repair found, and left."""

    id: UUID
    before: State
    after: State


@dataclass(frozen=True, kw_only=True)
class Entry:
    action: str
    outcome: RepairAudit.Outcome
    reason: str = ""
    filter: dict[str, object] = field(default_factory=dict)
    ids: Sequence[UUID] = ()
    changes: Sequence[Change] = ()
    result: dict[str, object] = field(default_factory=dict)
    duration_ms: int = 0
    idempotency_key: str = ""


def record(actor: Actor, entry: Entry) -> RepairAudit:
    kept = Now() + Value(timedelta(days=settings.DIAG_AUDIT_DAYS))
    return RepairAudit.objects.create(
        keep_until=kept,
        actor=actor.name,
        admin_id=actor.admin_id,
        address=actor.address,
        action=entry.action,
        outcome=entry.outcome,
        reason=entry.reason,
        filter=entry.filter,
        ids=list(entry.ids),
        changes=[_shown(change) for change in entry.changes],
        result=entry.result,
        duration_ms=entry.duration_ms,
        idempotency_key=entry.idempotency_key,
    )


def _shown(change: Change) -> dict[str, object]:
    return {
        "id": str(change.id),
        "before": {"status": change.before.status, "fence": change.before.fence},
        "after": {"status": change.after.status, "fence": change.after.fence},
    }


def purge() -> int:
    """What was kept long enough; the database refuses to let go of anything younger."""
    removed, _ = RepairAudit.objects.filter(keep_until__lt=Now()).delete()
    return removed
