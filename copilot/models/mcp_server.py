"""Store MCP servers."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class McpServer(models.Model):
    """An MCP server of a user, or of all users if it has no owner. Only `copilot.tools.mcp.services` writes it."""

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
    trusted = models.BooleanField(default=False, help_text="Trust its read-only hints.")
    never_ask = models.JSONField(default=list, blank=True, help_text="Tools that run without approval.")
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1, help_text="Grows with every change.")
    failures = models.PositiveSmallIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=500, blank=True)
    tools = models.JSONField(default=list, blank=True, help_text="The tools it listed last.")
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
