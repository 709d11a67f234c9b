"""Celery tasks of diagnostics, and what the daily one deletes."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.db.models.functions import Now

from copilot.schedules import selectors as schedules_selectors
from copilot.schedules import services as schedules
from diagnostics import audit, audit_delivery, samples, snapshot
from diagnostics.models import RepairAudit, RepairPreview
from diagnostics.reaper import run_sweep
from diagnostics.repairs.actions import DISABLED_REASON_PREFIX


@shared_task(name="diagnostics.tasks.reap", ignore_result=True, acks_late=False)
def reap() -> None:
    """Sweep once, by hand or for the scheduler of an older release. Otherwise `loops` does it."""
    run_sweep()


# --- Once a day ---


@shared_task(name="diagnostics.tasks.sample", ignore_result=True)
def sample() -> None:
    """Record the figures of this minute, by hand or for the scheduler of an older release. Otherwise `loops` does it."""
    samples.record_samples(snapshot.compute_summary())


@shared_task(name="diagnostics.tasks.purge", ignore_result=True)
def purge() -> None:
    purge_expired()


@shared_task(name="diagnostics.tasks.deliver_audit", ignore_result=True)
def deliver_audit() -> None:
    audit_delivery.deliver_pending_events()


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
