"""Store schedules and their runs."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.chat.permissions import PermissionsJSON
from copilot.models.agent import Agent
from copilot.models.session import Session
from copilot.models.turn import Turn


class Schedule(models.Model):
    """A task that runs on a schedule. Only `copilot.schedules.services` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="schedules")
    session = models.ForeignKey(
        Session,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="schedules",
        help_text="The session it runs in; empty = a new session each time.",
    )
    name = models.CharField(max_length=100)
    prompt = models.TextField(blank=True)
    agent = models.ForeignKey(
        Agent, on_delete=models.CASCADE, null=True, blank=True, related_name="schedules"
    )
    inputs = models.JSONField(default=dict, blank=True)
    cron = models.CharField(max_length=100)
    timezone = models.CharField(max_length=64)
    permissions: models.JSONField[PermissionsJSON, PermissionsJSON] = models.JSONField()
    inbound_context = models.JSONField(
        default=dict,
        blank=True,
        help_text="The chat where its runs answer too.",
    )
    next_run = models.DateTimeField(null=True, blank=True, help_text="Empty while it is off.")
    failures = models.PositiveSmallIntegerField(default=0, help_text="Failures in a row; five turn it off.")
    disabled_reason = models.CharField(max_length=200, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = [
            models.Index(fields=["next_run"], name="due_schedules", condition=Q(next_run__isnull=False))
        ]

    def __str__(self) -> str:
        return self.name


class ScheduleRun(models.Model):
    """The outcome of one due time of a schedule."""

    class Outcome(models.TextChoices):
        STARTED = "started"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"
        SKIPPED = "skipped"
        REFUSED = "refused"

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="runs")
    due_at = models.DateTimeField()
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    reason = models.CharField(max_length=200, blank=True)
    turn = models.ForeignKey(Turn, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["schedule", "due_at"], name="one_run_per_due_moment"),
        ]
        indexes = [
            models.Index(fields=["created_at"], name="runs_by_time"),
            models.Index(fields=["id"], name="runs_under_way", condition=Q(outcome="started")),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at {self.due_at}"
