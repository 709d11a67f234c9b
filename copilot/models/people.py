"""What belongs to a user: keys, memories and preferences (A20.6, A25, A30.1)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class ApiKey(models.Model):
    """A user's key for programs; `copilot.api_keys` alone writes it. Only a hash is kept (A20.6)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=10, unique=True)
    secret_hash = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name or self.prefix


class MemoryItem(models.Model):
    """One thing the agent remembers of a user; `copilot.memories` alone writes it (A25.1)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memories")
    text = models.CharField(max_length=1000)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the text: the same thing is kept once.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    remembered_at = models.DateTimeField(db_default=Now(), help_text="When it was last said.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "digest"], name="a_memory_is_kept_once"),
            models.CheckConstraint(condition=~Q(text=""), name="a_memory_says_something"),
        ]
        indexes = [models.Index(fields=["owner", "-remembered_at", "id"], name="memories_of_an_owner")]

    def __str__(self) -> str:
        return f"memory {self.id}"


class MemorySwitch(models.Model):
    """Whether a user wants to be remembered; no row means yes. `copilot.memories` alone writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memory_switch"
    )
    on = models.BooleanField(default=True)

    def __str__(self) -> str:
        return "on" if self.on else "off"


class Preferences(models.Model):
    """What a user asks of every conversation; no row means the defaults. `copilot.preferences` alone writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences"
    )
    timezone = models.CharField(max_length=64, blank=True, help_text="An IANA name; nothing means UTC.")
    instructions = models.CharField(
        max_length=4000, blank=True, help_text="Added to the system text of every conversation (A30.1)."
    )
    personality = models.ForeignKey(
        "Personality", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"preferences of user {self.owner_id}"
