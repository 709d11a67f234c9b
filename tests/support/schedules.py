"""Create schedules that are due."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from copilot.models import Schedule, Turn
from copilot.schedules import runner
from tests.support.turn_engine import ended


def run_due_schedule(schedule: Schedule) -> UUID:
    """Run the schedule now and return its turn."""
    Schedule.objects.update(next_run=timezone.now() - timedelta(seconds=1))
    before = set(Turn.objects.values_list("pk", flat=True))
    runner.run_due_schedules()
    [turn_id] = set(Turn.objects.values_list("pk", flat=True)) - before
    ended(turn_id)
    return turn_id
