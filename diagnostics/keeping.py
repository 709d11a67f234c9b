"""How long things are kept: the record of repairs, previews, samples, and schedules that were switched off (D8, D11, D21)."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now

from copilot import schedules
from diagnostics import audit, samples
from diagnostics.models import RepairAudit, RepairPreview
from diagnostics.repairs.schedules import PREFIX

PREVIEWS_KEPT = timedelta(days=1)  # the audit row tells what they led to
SCHEDULES_KEPT = timedelta(days=30)  # switched off, for their owners to mend
LOOKED_BACK = timedelta(days=7)  # beyond that, for days on which nobody looked


def purge() -> None:
    audit.purge()
    samples.purge()
    RepairPreview.objects.filter(created_at__lt=Now() - PREVIEWS_KEPT).delete()
    remove_schedules()


def remove_schedules() -> int:
    """Those that a repair switched off thirty days ago and that nobody has switched on since."""
    due = RepairAudit.objects.filter(
        action="cleanup_orphaned_schedules",
        outcome=RepairAudit.Outcome.DONE,
        at__lt=Now() - SCHEDULES_KEPT,
        at__gt=Now() - SCHEDULES_KEPT - LOOKED_BACK,
    )
    ids = [one for found in due.values_list("ids", flat=True) for one in found]
    return schedules.remove_off(schedules.timetable.still_off(ids, PREFIX)) if ids else 0
