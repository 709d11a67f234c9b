from __future__ import annotations

from celery import shared_task

from diagnostics import audit_delivery, retention, samples, snapshot
from diagnostics.reaper import run_sweep


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
    retention.purge_expired()


@shared_task(name="diagnostics.tasks.deliver_audit", ignore_result=True)
def deliver_audit() -> None:
    audit_delivery.deliver_pending_events()
