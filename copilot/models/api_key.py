"""Store API keys."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def unrevoked(self) -> ApiKeyQuerySet:
        return self.filter(revoked_at=None)

    def active(self) -> ApiKeyQuerySet:
        return self.unrevoked().exclude(expires_at__lte=Now())


class ApiKey(models.Model):
    """An API key of a user, stored as a hash. Only `copilot.accounts.api_keys` writes it."""

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

    objects = ApiKeyQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name or self.prefix
