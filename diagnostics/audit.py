"""Write the audit log: repairs, and every event that another app records. Events are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Now

from config.core.audit import AuditRecord
from diagnostics.models import AuditDelivery, AuditEvent, RepairAudit

REAPER_NAME = "reaper"
AuditOutcome = RepairAudit.Outcome


@dataclass(frozen=True, kw_only=True)
class RepairActor:
    """The administrator or the reaper that makes a repair."""

    name: str
    admin_id: int | None = None
    address: str | None = None


REAPER_ACTOR = RepairActor(name=REAPER_NAME)


@dataclass(frozen=True, kw_only=True)
class TargetState:
    status: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class TargetChange:
    """The state of a repaired row before and after."""

    id: UUID
    before: TargetState
    after: TargetState


@dataclass(frozen=True, kw_only=True)
class RepairRecord:
    action: str
    outcome: RepairAudit.Outcome
    reason: str = ""
    filter: dict[str, object] = field(default_factory=dict)
    ids: Sequence[UUID] = ()
    changes: Sequence[TargetChange] = ()
    result: dict[str, object] = field(default_factory=dict)
    duration_ms: int = 0
    idempotency_key: str = ""


def record_repair(actor: RepairActor, entry: RepairRecord) -> AuditEvent:
    return _create_event(
        actor=actor.name,
        admin_id=actor.admin_id,
        address=actor.address,
        action=entry.action,
        outcome=entry.outcome,
        reason=entry.reason,
        filter=entry.filter,
        ids=list(entry.ids),
        changes=[_serialize_change(change) for change in entry.changes],
        result=entry.result,
        duration_ms=entry.duration_ms,
        idempotency_key=entry.idempotency_key,
    )


def write_event(sender: object, event: AuditRecord, **kwargs: object) -> None:
    """Write an event that another app recorded, in that app's transaction."""
    _create_event(
        category=event.action.partition(".")[0][:20],
        actor=event.actor,
        admin_id=event.actor_id,
        address=event.address,
        action=event.action,
        target_type=event.target_type,
        target_id=event.target_id,
        outcome=event.outcome,
        reason=event.reason,
        result=dict(event.details),
    )


def _create_event(**fields: object) -> AuditEvent:
    keep_until = Now() + Value(timedelta(days=settings.DIAG_AUDIT_DAYS))
    with transaction.atomic():
        row = AuditEvent.objects.create(keep_until=keep_until, **fields)
        AuditDelivery.objects.bulk_create(
            [AuditDelivery(event=row, sink=name) for name in list_configured_sinks()]
        )
    return row


def list_configured_sinks() -> list[str]:
    sinks = (("webhook", settings.AUDIT_WEBHOOK_URL), ("syslog", settings.AUDIT_SYSLOG_ADDRESS))
    return [name for name, address in sinks if address]


def _serialize_change(change: TargetChange) -> dict[str, object]:
    return {
        "id": str(change.id),
        "before": {"status": change.before.status, "fence": change.before.fence},
        "after": {"status": change.after.status, "fence": change.after.fence},
    }


def purge_expired_events() -> int:
    """Delete events whose retention has ended; the database refuses to delete younger ones."""
    with transaction.atomic():
        old = AuditEvent.objects.filter(keep_until__lt=Now())
        AuditDelivery.objects.filter(event__in=old).delete()
        return old._raw_delete(old.db)  # one statement: the log may be long
