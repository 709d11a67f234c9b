"""How long things are kept: the record of repairs, previews, samples, and schedules that were switched off (D8, D11, D21)."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now

from copilot.schedules import selectors as schedules_selectors
from copilot.schedules import services as schedules
from diagnostics import audit, samples
from diagnostics.models import RepairAudit, RepairPreview
from diagnostics.repairs.actions import DISABLED_REASON_PREFIX

PREVIEW_RETENTION = timedelta(days=1)  # the audit row tells what they led to
SCHEDULE_RETENTION = timedelta(days=30)  # switched off, for their owners to mend
SCHEDULE_LOOKBACK = timedelta(days=7)  # beyond that, for days on which nobody looked


def purge_expired() -> None:
    audit.purge_expired_events()
    samples.purge_samples()
    RepairPreview.objects.filter(created_at__lt=Now() - PREVIEW_RETENTION).delete()
    purge_disabled_schedules()


def purge_disabled_schedules() -> int:
    """Those that a repair switched off thirty days ago and that nobody has switched on since."""
    due = RepairAudit.objects.filter(
        action="cleanup_orphaned_schedules",
        outcome=RepairAudit.Outcome.DONE,
        at__lt=Now() - SCHEDULE_RETENTION,
        at__gt=Now() - SCHEDULE_RETENTION - SCHEDULE_LOOKBACK,
    )
    ids = [one for found in due.values_list("ids", flat=True) for one in found]
    return (
        schedules.cancel_disabled_schedules(
            schedules_selectors.list_still_disabled(ids, DISABLED_REASON_PREFIX)
        )
        if ids
        else 0
    )
