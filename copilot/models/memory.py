"""Store memories and the setting that turns them off."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.session import EMPTY_LIST


class MemoryItem(models.Model):
    """A fact about a user, remembered across sessions. Only `copilot.memories.services` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memories")
    text = models.CharField(max_length=1000)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the text, so that it is stored once.")
    sources = models.JSONField(
        default=list,
        db_default=EMPTY_LIST,
        blank=True,
        help_text="Untrusted sources the conversation had read when it was saved.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    remembered_at = models.DateTimeField(db_default=Now(), help_text="When it was last mentioned.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "digest"], name="a_memory_is_kept_once"),
            models.CheckConstraint(condition=~Q(text=""), name="a_memory_says_something"),
        ]
        indexes = [models.Index(fields=["owner", "-remembered_at", "id"], name="memories_of_an_owner")]

    def __str__(self) -> str:
        return f"memory {self.id}"


class MemoryPreference(models.Model):
    """A user's setting for memories; no row means on. Only `copilot.memories.services` writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memory_preference"
    )
    enabled = models.BooleanField(default=True)

    def __str__(self) -> str:
        return "on" if self.enabled else "off"
