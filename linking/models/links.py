"""Links between accounts and platforms, and the tokens that create them; only `linking.links` writes them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from linking.models.bot_keys import BotKey
from linking.models.fields import (
    known_platform_constraint,
    platform_field,
    platform_id_constraint,
    platform_id_field,
)

MAX_LIST_ENTRIES = 200  # channels, roles or tools


BOT_ACCOUNT_HELP_TEXT = (
    "The bot it was made with, the only one that acts by it. Empty: unknown, so none does."
)


class PlatformLink(models.Model):
    """A server whose conversations with one bot run as the link's owner and at the owner's cost."""

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        BOT_REMOVED = "bot_removed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    platform = platform_field()
    bot_account = platform_id_field(blank=True, default="", help_text=BOT_ACCOUNT_HELP_TEXT)
    server_id = platform_id_field()
    server_name = models.CharField(max_length=100, blank=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="server_links")
    state = models.CharField(
        max_length=16, choices=State.choices, default=State.ACTIVE, db_default=State.ACTIVE
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    daily_cap_microdollars = models.BigIntegerField(
        null=True, blank=True, help_text="Empty = no cap, 0 = nothing allowed."
    )
    monthly_cap_microdollars = models.BigIntegerField(
        null=True, blank=True, help_text="Empty = no cap, 0 = nothing allowed."
    )
    member_turns_per_hour = models.PositiveIntegerField(default=20, db_default=20)
    allowed_channels = ArrayField(
        platform_id_field(), default=list, blank=True, help_text="Empty = all; threads go with their channel."
    )
    allowed_roles = ArrayField(platform_id_field(), default=list, blank=True, help_text="Empty = everyone.")
    require_mention = models.BooleanField(default=True, db_default=True)
    tools = ArrayField(
        models.CharField(max_length=64),
        default=list,
        blank=True,
        help_text="Tools its members may use, besides those of the guest profile.",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "server_id", "bot_account"], name="a_server_has_one_owner"
            ),
            known_platform_constraint("a_server_link"),
            platform_id_constraint("bot_account", or_nothing=True),
            platform_id_constraint("server_id"),
            models.CheckConstraint(
                condition=Q(state__in=["active", "paused", "bot_removed"]), name="a_link_has_a_known_state"
            ),
            models.CheckConstraint(condition=Q(daily_cap_microdollars__gte=0), name="a_daily_cap_is_no_debt"),
            models.CheckConstraint(
                condition=Q(monthly_cap_microdollars__gte=0), name="a_monthly_cap_is_no_debt"
            ),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{field}__len__lte": MAX_LIST_ENTRIES}),
                    name=f"{field}_can_be_looked_through",
                )
                for field in ("allowed_channels", "allowed_roles", "tools")
            ),
        ]
        indexes = [models.Index(F("owner"), F("created_at").desc(), F("id"), name="server_links_of_an_owner")]

    def __str__(self) -> str:
        return f"{self.platform} server link {self.id}"


class PlatformUserLink(models.Model):
    """A chat account that acts as a user in direct messages to one bot, and nowhere else."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    platform = platform_field()
    bot_account = platform_id_field(blank=True, default="", help_text=BOT_ACCOUNT_HELP_TEXT)
    platform_user_id = platform_id_field()
    display_name = models.CharField(max_length=80, blank=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="chat_accounts")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "platform_user_id", "bot_account"], name="a_chat_account_acts_as_one_user"
            ),
            known_platform_constraint("a_user_link"),
            platform_id_constraint("bot_account", or_nothing=True),
            platform_id_constraint("platform_user_id"),
        ]
        indexes = [models.Index(F("user"), F("created_at").desc(), F("id"), name="user_links_of_a_user")]

    def __str__(self) -> str:
        return f"{self.platform} user link {self.id}"


class LinkTokenQuerySet(models.QuerySet["LinkToken"]):
    def unused(self) -> LinkTokenQuerySet:
        return self.filter(used_at=None, superseded_at=None)

    def pending(self) -> LinkTokenQuerySet:
        """Choose tokens that can be confirmed now."""
        return self.unused().filter(expires_at__gt=Now())


class LinkToken(models.Model):
    """A bot's request for a link, confirmed once by a person; only a hash of the token is stored."""

    class Kind(models.TextChoices):
        SERVER = "server"
        USER = "user"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token.")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    platform = platform_field()
    bot_account = platform_id_field()
    subject_id = platform_id_field(help_text="The server or the platform's user.")
    subject_name = models.CharField(max_length=100, blank=True)
    requester_name = models.CharField(max_length=80, blank=True)
    notify_container = platform_id_field(
        blank=True, help_text="The container to notify when it is confirmed."
    )
    created_by_key = models.ForeignKey(
        BotKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="link_tokens"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="link_tokens"
    )
    superseded_at = models.DateTimeField(null=True, blank=True)

    objects = LinkTokenQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "bot_account", "kind", "subject_id"],
                condition=Q(used_at=None, superseded_at=None),
                name="one_pending_token_per_subject",
            ),
            models.CheckConstraint(
                condition=Q(used_at__isnull=True, used_by__isnull=True)
                | Q(used_at__isnull=False, used_by__isnull=False),
                name="a_used_token_and_only_a_used_token_has_a_user",
            ),
            models.CheckConstraint(
                condition=Q(used_at__isnull=True) | Q(superseded_at__isnull=True),
                name="a_used_token_is_not_superseded",
            ),
            models.CheckConstraint(condition=Q(kind__in=["server", "user"]), name="a_token_has_a_known_kind"),
            models.CheckConstraint(condition=Q(digest__regex="^[0-9a-f]{64}$"), name="a_token_is_a_digest"),
            known_platform_constraint("a_token"),
            platform_id_constraint("bot_account"),
            platform_id_constraint("subject_id"),
            platform_id_constraint("notify_container", or_nothing=True),
        ]
        indexes = [
            models.Index(
                fields=["platform", "kind", "subject_id", "-created_at"], name="tokens_of_a_subject"
            ),
            models.Index(fields=["created_at"], name="tokens_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} token {self.id}"
