"""Read the timeline of one execution, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from config.core.errors import NotFound
from copilot.chat import turn_selectors
from diagnostics import execution_list
from diagnostics.models import AuditEvent

MAX_AUDIT_EVENTS = 100


@dataclass(frozen=True, kw_only=True)
class Happened:
    at: datetime
    what: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class AuditShown:
    id: str
    at: datetime
    actor: str
    address: str | None
    category: str
    action: str
    target_type: str
    target_id: str
    outcome: str
    reason: str
    filter: dict[str, object]
    ids: list[str]
    changes: list[dict[str, object]]
    result: dict[str, object]
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    results: list[AuditShown]
    total: int
    total_is_capped: bool


@dataclass(frozen=True, kw_only=True)
class Story:
    execution: execution_list.Execution
    timeline: list[Happened]
    audit: list[AuditShown]


def get_story(execution_id: UUID, *, see_email: bool = False) -> Story:
    shown = execution_list.get_execution(execution_id, see_email=see_email)
    audits = [_serialize_event(row) for row in list_execution_audits(execution_id)]
    return Story(execution=shown, timeline=_build_timeline(execution_id, audits), audit=audits)


def _build_timeline(execution_id: UUID, audits: list[AuditShown]) -> list[Happened]:
    """Build the timeline from the row's own times and from the repairs."""
    rows = turn_selectors.describe_turns(turn_selectors.turns_by_id([execution_id]))
    if not rows:
        raise NotFound
    row = rows[0]
    moments = (
        (row.created_at, "created", row.origin),
        (row.queued_at if row.queued_at != row.created_at else None, "queued", ""),
        (row.dispatched_at, "dispatched", f"{row.dispatch_count} times in all"),
        (row.started_at, "started", ""),
        (
            row.attempt_started_at if row.attempt_started_at != row.started_at else None,
            "begun again",
            f"attempt {row.attempts}, {row.worker}",
        ),
        (row.recovered_at, "taken over", f"fence {row.fence}, {row.handovers} hand-overs"),
        (row.stop_requested_at, "stop requested", ""),
        (row.ended_at, row.status, row.failure_code),
    )
    happened = [Happened(at=at, what=what, detail=detail) for at, what, detail in moments if at is not None]
    happened += [Happened(at=one.at, what=one.action, detail=one.actor) for one in audits]
    return sorted(happened, key=lambda one: one.at)


def list_execution_audits(execution_id: UUID) -> list[AuditEvent]:
    return list(
        AuditEvent.objects.filter(ids__contains=[execution_id]).order_by("-at", "pk")[:MAX_AUDIT_EVENTS]
    )


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Select audit events. Without `everything`, which needs the permission to read the audit log, only repairs."""

    everything: bool
    category: str = ""
    actor: str = ""
    action: str = ""
    outcome: str = ""
    user_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def build_queryset(self) -> QuerySet[AuditEvent]:
        rows = AuditEvent.objects.all() if self.everything else AuditEvent.objects.filter(category="repair")
        wanted: dict[str, object] = {
            "category": self.category,
            "actor": self.actor,
            "action": self.action,
            "outcome": self.outcome,
            "at__gte": self.since,
            "at__lt": self.until,
        }
        rows = rows.filter(**{column: value for column, value in wanted.items() if value})
        if self.user_id is not None:
            about = Q(target_type="user", target_id=str(self.user_id))
            rows = rows.filter(about | Q(admin_id=self.user_id))
        return rows.order_by("-at", "pk")


def list_audit_events(wanted: AuditFilter, *, limit: int = 50, offset: int = 0) -> AuditPage:
    rows = wanted.build_queryset()
    total = rows[: execution_list.MAX_COUNTED + 1].count()
    found = rows[offset : offset + limit]
    return AuditPage(
        results=[_serialize_event(row) for row in found],
        total=min(total, execution_list.MAX_COUNTED),
        total_is_capped=total > execution_list.MAX_COUNTED,
    )


def _serialize_event(row: AuditEvent) -> AuditShown:
    return AuditShown(
        id=str(row.pk),
        at=row.at,
        actor=row.actor,
        address=row.address,
        category=row.category,
        action=row.action,
        target_type=row.target_type,
        target_id=row.target_id,
        outcome=row.outcome,
        reason=row.reason,
        filter=row.filter,
        ids=[str(one) for one in row.ids],
        changes=row.changes,
        result=row.result,
        duration_ms=row.duration_ms,
    )
