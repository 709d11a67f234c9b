"""When Celery beat last sent anything, as far as it has written down: at least every minute while it lives (D12)."""

from __future__ import annotations

from datetime import datetime

from django_celery_beat.models import PeriodicTask


def last_tick_at() -> datetime | None:
    sent = PeriodicTask.objects.filter(enabled=True, last_run_at__isnull=False)
    newest = sent.order_by("-last_run_at").first()
    return newest.last_run_at if newest is not None else None
