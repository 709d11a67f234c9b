"""Store sessions."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.chat.permissions import PermissionsJSON

# Defaults in the database let a statement name only the columns it sets.
EMPTY_LIST = models.Value([], output_field=models.JSONField())
EMPTY_OBJECT = models.Value({}, output_field=models.JSONField())


class SessionQuerySet(models.QuerySet["Session"]):
    def visible_to(self, user_id: int) -> SessionQuerySet:
        return self.filter(owner=user_id, deleted_at=None)


class Session(models.Model):
    """A conversation of a user, with its settings."""

    class Goal(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        ACHIEVED = "achieved"
        EXHAUSTED = "exhausted"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sessions", db_index=False
    )
    title = models.CharField(max_length=200, blank=True)
    title_origin = models.CharField(max_length=16, blank=True)
    pinned = models.BooleanField(default=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    todos = models.JSONField(default=list, blank=True)
    fence = models.BigIntegerField(default=0, help_text="Grows with every turn and takeover; never falls.")
    publish_failed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When events of committed rows could not be published; the sweep publishes them again.",
    )

    # Of a sub-session:
    parent = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children", db_index=False
    )
    root = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    depth = models.PositiveSmallIntegerField(default=0, db_default=0)
    platform = models.CharField(
        max_length=16, blank=True, default="", db_default="", help_text="The chat platform it started on."
    )

    # Agent, personality and instructions:
    agent_version = models.ForeignKey(
        "AgentVersion", on_delete=models.PROTECT, null=True, blank=True, related_name="runs", db_index=False
    )
    built_agent = models.ForeignKey(
        "Agent",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="builders",
        db_index=False,
        help_text="The agent that this builder session edits.",
    )
    personality = models.ForeignKey(
        "Personality", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    instructions = models.CharField(max_length=4000, blank=True, default="", db_default="")
    allowed_tools = models.JSONField(null=True, blank=True, help_text="Names; null allows all.")

    # Tool calls that run without approval:
    auto_approve = models.BooleanField(default=False, db_default=False)
    auto_approve_cap = models.BigIntegerField(null=True, blank=True, help_text="In microdollars.")
    auto_approve_children = models.BooleanField(
        default=False, db_default=False, help_text="Applies to its sub-sessions too, within the same limit."
    )
    auto_approve_spent = models.BigIntegerField(
        default=0, db_default=0, help_text="Spent and reserved, in microdollars."
    )

    # Goal:
    goal = models.CharField(max_length=2000, blank=True, default="", db_default="")
    goal_state = models.CharField(max_length=16, choices=Goal.choices, blank=True, default="", db_default="")
    goal_reason = models.CharField(max_length=500, blank=True, default="", db_default="")
    goal_continuations = models.PositiveSmallIntegerField(default=0, db_default=0)
    goal_permissions: models.JSONField[PermissionsJSON | None, PermissionsJSON | None] = models.JSONField(
        null=True,
        blank=True,
        help_text="Permissions of the person or key that set the goal; continuations have no more.",
    )

    context = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="Use of the context window when the last turn ended.",
    )
    imported = models.BooleanField(default=False, db_default=False, help_text="Imported from a document.")
    active_at = models.DateTimeField(db_default=Now(), help_text="Time of the last message or ending.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = SessionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "built_agent"],
                condition=Q(built_agent__isnull=False, deleted_at=None),
                name="one_builder_session_per_agent",
            ),
            models.CheckConstraint(
                condition=Q(auto_approve_spent__gte=0), name="auto_approved_spending_is_never_negative"
            ),
        ]
        indexes = [
            models.Index(fields=["owner"], name="sessions_of_an_owner"),
            # Lists are read from these alone, in order, however many sessions a user has.
            models.Index(
                fields=["owner", "-pinned", "-active_at", "id"],
                include=["depth", "title"],
                condition=Q(archived_at=None, deleted_at=None),
                name="listed_sessions",
            ),
            models.Index(
                fields=["owner", "-pinned", "-active_at", "id"],
                include=["depth", "title"],
                condition=Q(archived_at__isnull=False, deleted_at=None),
                name="archived_sessions",
            ),
            models.Index(fields=["-active_at"], name="sessions_by_activity"),
            models.Index(
                fields=["publish_failed_at"],
                condition=Q(publish_failed_at__isnull=False),
                name="sessions_with_a_failed_publish",
            ),
            models.Index(
                fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="sessions_in_the_trash"
            ),
            models.Index(
                fields=["active_at"], condition=Q(depth__gt=0, parent=None), name="sessions_for_one_answer"
            ),
            *(
                models.Index(fields=[field], condition=Q(**{f"{field}__isnull": False}), name=name)
                for field, name in (
                    ("parent", "sessions_of_a_parent"),
                    ("root", "sessions_of_a_root"),
                    ("agent_version", "sessions_of_an_agent"),
                    ("built_agent", "builder_sessions"),
                    ("personality", "sessions_of_a_personality"),
                )
            ),
        ]

    def __str__(self) -> str:
        return self.title or "New chat"
