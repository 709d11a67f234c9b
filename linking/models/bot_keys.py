"""Keys of bots; only `linking.links` writes them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from config.core.hashed_keys import HashedKey, HashedKeyQuerySet
from linking.models.fields import (
    known_platform_constraint,
    platform_field,
    platform_id_constraint,
    platform_id_field,
)

BOT_KEY_SCOPES = (
    "links:read",
    "links:write",
    "turns:start",
    "turns:read",
    "turns:control",
    "deliveries:manage",
)


class BotKeyQuerySet(HashedKeyQuerySet["BotKey"]):
    pass


class BotKey(HashedKey):
    """An API key of one bot account with its scopes; only a hash of the secret is stored."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)
    platform = platform_field()
    bot_account = platform_id_field(help_text="The platform's own id of this bot or app.")
    scopes = ArrayField(models.CharField(max_length=32), default=list)
    rate_per_minute = models.PositiveIntegerField(default=600, db_default=600)
    allowed_cidrs = ArrayField(
        models.CharField(max_length=49),
        default=list,
        blank=True,
        help_text="Networks it may call from, like 203.0.113.0/24; empty = anywhere.",
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="bot_keys"
    )

    objects = BotKeyQuerySet.as_manager()

    class Meta:
        constraints = [
            known_platform_constraint("a_bot_key"),
            platform_id_constraint("bot_account"),
            models.CheckConstraint(
                condition=Q(scopes__contained_by=list(BOT_KEY_SCOPES)), name="a_bot_key_has_known_scopes"
            ),
            models.CheckConstraint(condition=Q(rate_per_minute__gte=1), name="a_bot_key_has_a_rate"),
        ]
        indexes = [models.Index(fields=["platform", "bot_account"], name="keys_of_a_bot_account")]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"
