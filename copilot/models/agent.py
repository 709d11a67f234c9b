"""Store agents with their versions, and personalities."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class AgentQuerySet(models.QuerySet["Agent"]):
    def visible_to(self, user_id: int) -> AgentQuerySet:
        return self.filter(owner=user_id, deleted_at=None)


class Agent(models.Model):
    """Saved instructions, model and tools. Only `copilot.agents.services` writes it. Name and description repeat the newest version."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="agents")
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=1000, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    changed_at = models.DateTimeField(db_default=Now())
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = AgentQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["owner", "-changed_at", "id"], name="agents_of_an_owner")]

    def __str__(self) -> str:
        return self.name


class AgentVersion(models.Model):
    """One version of an agent; rows never change."""

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
    """A tone and style of answers, defined by administrators."""

    name = models.CharField(max_length=100, unique=True)
    prompt = models.TextField(max_length=8_000)
    tone = models.CharField(max_length=200, blank=True)
    style = models.CharField(max_length=200, blank=True)
    enabled = models.BooleanField(default=True)

    class Meta:
        verbose_name_plural = "personalities"

    def __str__(self) -> str:
        return self.name
