"""Saved agents, personalities, schedules and MCP servers (A26, A27, A28, A30.1)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.conversations import Session, Turn
from copilot.permissions import PermissionsJSON


class Agent(models.Model):
    """A saved preset; `copilot.presets` alone writes it. The fields repeat its newest version (A27.1)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="agents")
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=1000, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    changed_at = models.DateTimeField(db_default=Now())
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["owner", "-changed_at", "id"], name="agents_of_an_owner")]

    def __str__(self) -> str:
        return self.name


class AgentVersion(models.Model):
    """One edit of an agent; never changed."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=1000, blank=True)
    instructions = models.TextField(max_length=32_000)
    tier = models.CharField(max_length=16, blank=True)
    tools = models.JSONField(null=True, blank=True, help_text="Names; null allows all.")
    inputs_schema = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "number"], name="one_version_per_number")]

    def __str__(self) -> str:
        return f"{self.name} v{self.number}"


class Personality(models.Model):
    """A way to speak, defined by administrators (A30.1)."""

    name = models.CharField(max_length=100, unique=True)
    prompt = models.TextField(max_length=8_000)
    tone = models.CharField(max_length=200, blank=True)
    style = models.CharField(max_length=200, blank=True)
    enabled = models.BooleanField(default=True)

    class Meta:
        verbose_name_plural = "personalities"

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """A task that runs by the clock; `copilot.schedules` alone writes it (A26)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="schedules")
    session = models.ForeignKey(
        Session,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="schedules",
        help_text="Where it runs; nothing means a new session each time.",
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
    arrival = models.JSONField(
        default=dict,
        blank=True,
        help_text="Where it was asked for, if its runs answer there too (L16).",
    )
    next_run = models.DateTimeField(null=True, blank=True, help_text="Nothing once it is off.")
    failures = models.PositiveSmallIntegerField(default=0, help_text="In a row; five switch it off.")
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
    """What became of one due moment."""

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
        indexes = [models.Index(fields=["id"], name="runs_under_way", condition=Q(outcome="started"))]

    def __str__(self) -> str:
        return f"{self.outcome} at {self.due_at}"


class McpServer(models.Model):
    """A server whose tools the agent may use; `copilot.mcp` alone writes it. Without an owner it is everybody's."""

    class Transport(models.TextChoices):
        HTTP = "http"
        STDIO = "stdio"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="mcp_servers"
    )
    name = models.CharField(max_length=40)
    transport = models.CharField(max_length=8, choices=Transport.choices)
    url = models.CharField(max_length=2000, blank=True)
    command = models.JSONField(default=list, blank=True, help_text="Program and arguments, for stdio.")
    secrets = models.TextField(blank=True, help_text="Headers or environment, encrypted.")
    trusted = models.BooleanField(default=False, help_text="Believe its read-only hints (A28.6).")
    never_ask = models.JSONField(default=list, blank=True, help_text="Tools that run without approval.")
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1, help_text="Grows with every change.")
    failures = models.PositiveSmallIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=500, blank=True)
    tools = models.JSONField(default=list, blank=True, help_text="What it listed last, for people.")
    listed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "MCP server"
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "name"], nulls_distinct=False, name="one_server_per_name"
            ),
            models.CheckConstraint(
                condition=Q(owner__isnull=True) | Q(transport="http"),
                name="a_users_server_is_reached_over_http",
            ),
        ]

    def __str__(self) -> str:
        return self.name
