"""Delete what has been kept long enough: audit events, previews, samples and disabled schedules."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now

from copilot.schedules import selectors as schedules_selectors
from copilot.schedules import services as schedules
from diagnostics import audit, samples
from diagnostics.models import RepairAudit, RepairPreview
from diagnostics.repairs.actions import DISABLED_REASON_PREFIX

PREVIEW_RETENTION = timedelta(days=1)  # the audit log keeps their results
SCHEDULE_RETENTION = timedelta(days=30)  # disabled, so that their owners can fix them
SCHEDULE_LOOKBACK = timedelta(days=7)  # covers days on which this did not run


def purge_expired() -> None:
    audit.purge_expired_events()
    samples.purge_samples()
    RepairPreview.objects.filter(created_at__lt=Now() - PREVIEW_RETENTION).delete()
    purge_disabled_schedules()


def purge_disabled_schedules() -> int:
    """Cancel schedules that a repair disabled thirty days ago and nobody has enabled since."""
    due = RepairAudit.objects.filter(
        action="cleanup_orphaned_schedules",
        outcome=RepairAudit.Outcome.DONE,
        at__lt=Now() - SCHEDULE_RETENTION,
        at__gt=Now() - SCHEDULE_RETENTION - SCHEDULE_LOOKBACK,
    )
    ids = [schedule_id for row_ids in due.values_list("ids", flat=True) for schedule_id in row_ids]
    return (
        schedules.cancel_disabled_schedules(
            schedules_selectors.list_still_disabled(ids, DISABLED_REASON_PREFIX)
        )
        if ids
        else 0
    )
