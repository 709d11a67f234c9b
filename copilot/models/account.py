"""Store what belongs to a user account: invitations, known devices, API keys and preferences."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from config.core.hashed_keys import HashedKey, HashedKeyQuerySet


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def unused(self) -> InvitationQuerySet:
        return self.filter(used_at=None, revoked_at=None)

    def pending(self) -> InvitationQuerySet:
        """Choose invitations that can be accepted now."""
        return self.unused().filter(expires_at__gt=Now())


class Invitation(models.Model):
    """A one-use sign-up link. Only `copilot.accounts.invitations` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(blank=True, help_text="The only email address that may use it; empty = any.")
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

    objects = InvitationQuerySet.as_manager()

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
    """A new, inactive account that waits for approval by staff. Only `copilot.accounts.sign_up` writes it."""

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
    """A browser that an account has signed in from, known by a cookie. Only `copilot.accounts.devices` writes it."""

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


class ApiKeyQuerySet(HashedKeyQuerySet["ApiKey"]):
    pass


class ApiKey(HashedKey):
    """An API key of a user, stored as a hash. Only `copilot.accounts.api_keys` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    scopes = models.JSONField(default=list)

    objects = ApiKeyQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name or self.prefix


class Preferences(models.Model):
    """A user's preferences for all chats; no row means the defaults. Only `copilot.accounts.preferences` writes it."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences"
    )
    timezone = models.CharField(max_length=64, blank=True, help_text="An IANA name; empty = UTC.")
    instructions = models.CharField(
        max_length=4000, blank=True, help_text="Added to the system text of every conversation."
    )
    personality = models.ForeignKey(
        "Personality", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"preferences of user {self.owner_id}"
