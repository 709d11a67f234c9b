"""Conversations on platforms, and the messages and buttons sent there."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from linking.models.fields import (
    known_platform_constraint,
    platform_field,
    platform_id_constraint,
    platform_id_field,
)
from linking.models.links import PlatformLink, PlatformUserLink


class PlatformConversationQuerySet(models.QuerySet["PlatformConversation"]):
    def open(self) -> PlatformConversationQuerySet:
        return self.filter(closed_at=None)

    def reachable(self) -> PlatformConversationQuerySet:
        """Leave out places where the bot is blocked or removed."""
        return self.filter(unreachable_at=None)


class PlatformConversation(models.Model):
    """The conversation of a place, with one session at a time; only `linking.conversations` writes it."""

    class Scope(models.TextChoices):
        SERVER = "server"
        DM = "dm"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    platform = platform_field()
    bot_account = platform_id_field()
    container_id = platform_id_field()
    thread_id = platform_id_field(blank=True, default="")
    scope = models.CharField(max_length=8, choices=Scope.choices)
    # The link of an open conversation cannot be deleted: the transaction that unlinks closes it first.
    link = models.ForeignKey(
        PlatformLink, on_delete=models.SET_NULL, null=True, blank=True, related_name="conversations"
    )
    user_link = models.ForeignKey(
        PlatformUserLink, on_delete=models.SET_NULL, null=True, blank=True, related_name="conversations"
    )
    session = models.ForeignKey(
        "copilot.Session", on_delete=models.CASCADE, related_name="platform_conversations"
    )
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    last_message_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True, blank=True)
    unreachable_at = models.DateTimeField(
        null=True, blank=True, help_text="When the bot was blocked or removed there."
    )

    objects = PlatformConversationQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["platform", "bot_account", "container_id", "thread_id"],
                condition=Q(closed_at=None),
                name="one_open_conversation_per_place",
            ),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=False)
                | Q(scope="server", link__isnull=False, user_link__isnull=True)
                | Q(scope="dm", link__isnull=True, user_link__isnull=False),
                name="an_open_conversation_has_the_link_of_its_scope",
            ),
            models.CheckConstraint(
                condition=Q(scope__in=["server", "dm"]), name="a_conversation_has_a_known_scope"
            ),
            known_platform_constraint("a_conversation"),
            platform_id_constraint("bot_account"),
            platform_id_constraint("container_id"),
            platform_id_constraint("thread_id", or_nothing=True),
        ]

    def __str__(self) -> str:
        return f"{self.platform} conversation {self.id}"


class OutboundMessage(models.Model):
    """A part of a turn's answer as the platform shows it; only `linking.outbound` writes it."""

    conversation = models.ForeignKey(PlatformConversation, on_delete=models.CASCADE, related_name="sent")
    turn = models.ForeignKey(
        "copilot.Turn", on_delete=models.CASCADE, related_name="platform_messages", db_index=False
    )
    part = models.PositiveSmallIntegerField()
    platform_message_id = platform_id_field(blank=True, help_text="Empty = being sent, or lost.")
    text_hash = models.CharField(
        max_length=64, blank=True, help_text="Hash of what the platform last accepted."
    )
    card = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The call that needs a person's decision.",
    )
    final = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["turn", "part"], name="a_part_is_sent_once"),
            platform_id_constraint("platform_message_id", or_nothing=True),
        ]

    def __str__(self) -> str:
        return f"part {self.part} of turn {self.turn_id}"


class Button(models.Model):
    """A button in a chat and its meaning; the platform gets only an opaque code."""

    class Kind(models.TextChoices):
        APPROVAL = "approval"
        QUESTION = "question"

    code = models.CharField(max_length=22, primary_key=True)
    conversation = models.ForeignKey(PlatformConversation, on_delete=models.CASCADE, related_name="buttons")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    subject_id = models.UUIDField(db_index=True, help_text="The approval or the question.")
    answer = models.CharField(max_length=500, help_text="approve, reject, or the choice.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="question") | Q(kind="approval", answer__in=["approve", "reject"]),
                name="a_button_means_something",
            ),
        ]
        indexes = [models.Index(fields=["created_at"], name="buttons_by_age")]

    def __str__(self) -> str:
        return f"button of {self.kind} {self.subject_id}"
