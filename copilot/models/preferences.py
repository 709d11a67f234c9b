"""Store user preferences."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Preferences(models.Model):
    """A user's preferences for all chats; no row means the defaults. Only `copilot.accounts.preferences` writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences"
    )
    timezone = models.CharField(max_length=64, blank=True, help_text="An IANA name; nothing means UTC.")
    instructions = models.CharField(
        max_length=4000, blank=True, help_text="Added to the system text of every conversation."
    )
    personality = models.ForeignKey(
        "Personality", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"preferences of user {self.owner_id}"
