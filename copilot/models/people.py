"""What belongs to a user: keys, memories and preferences (A20.6, A25, A30.1)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.conversations import EMPTY_LIST


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
    sources = models.JSONField(
        default=list,
        db_default=EMPTY_LIST,
        blank=True,
        help_text="Untrusted text that the conversation had read which made it.",
    )
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


class Invitation(models.Model):
    """A one-use link that lets somebody sign up; `copilot.accounts.invitations` alone writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(blank=True, help_text="The only address it is good for; empty for any.")
    token_hash = models.CharField(max_length=64, unique=True, editable=False)
    makes_admin = models.BooleanField(default=False, editable=False)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(used_by=None) | Q(used_at__isnull=False),
                name="an_invitation_used_by_somebody_was_used",
            ),
        ]
        indexes = [models.Index(fields=["-created_at", "id"], name="invitations_by_age")]

    def __str__(self) -> str:
        return self.email or f"invitation {self.id}"


class SignUpRequest(models.Model):
    """A new account that waits until staff approve it; it is inactive until then. `copilot.accounts.sign_up` writes it."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sign_up_request"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        indexes = [
            models.Index(
                fields=["created_at"], name="undecided_sign_ups", condition=models.Q(approved_at=None)
            )
        ]

    def __str__(self) -> str:
        return f"sign-up of user {self.user_id}"


class KnownDevice(models.Model):
    """A browser that an account signed in from, by a cookie of its own; `copilot.accounts.devices` alone writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="known_devices")
    token_hash = models.CharField(max_length=64)
    name = models.CharField(max_length=100)
    first_seen_at = models.DateTimeField(db_default=Now(), editable=False)
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "token_hash"], name="a_device_is_known_once")]

    def __str__(self) -> str:
        return self.name
