"""Store messages, and their search index in a table of its own so that updates of messages stay cheap."""

from __future__ import annotations

import uuid

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from copilot.chat.permissions import PermissionsJSON
from copilot.models.session import EMPTY_LIST, EMPTY_OBJECT, Session
from copilot.models.turn import Turn


class MessageQuerySet(models.QuerySet["Message"]):
    def queued(self) -> MessageQuerySet:
        """Choose messages that wait for a turn."""
        return self.filter(sequence=None, dropped_at=None)

    def visible(self) -> MessageQuerySet:
        """Choose messages that have a place in the transcript and are not hidden."""
        return self.filter(hidden="", sequence__isnull=False)


class Message(models.Model):
    """One row of the transcript. Only modules of `copilot.chat` write it. A user message without a sequence is queued."""

    class Kind(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"
        REASONING = "reasoning"
        TOOL_CALL = "tool_call"
        TOOL_RESULT = "tool_result"
        NOTE = "note"
        SUMMARY = "summary"
        NOTICE = "notice"

    class Hidden(models.TextChoices):
        RETRACTED = "retracted"
        UNDONE = "undone"
        OLDER_BRANCH = "older_branch"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="messages", db_index=False)
    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, null=True, blank=True, related_name="messages", db_index=False
    )
    sequence = models.BigIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    content = models.TextField(blank=True, default="", db_default="")
    data = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="Fields that the kind needs besides text.",
    )
    call_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - null leaves the index
    author = models.CharField(max_length=150, blank=True, default="", db_default="")
    attachments = models.JSONField(default=list, db_default=EMPTY_LIST, blank=True)
    model = models.CharField(max_length=128, blank=True, default="", db_default="")
    branch = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Which version of a user's message this is, from 0."
    )
    version_of = models.UUIDField(
        null=True, blank=True, help_text="The first version of a message that has several, also on itself."
    )
    hidden_with_version = models.UUIDField(
        null=True, blank=True, help_text="The version whose branch hides this row while another is shown."
    )
    hidden = models.CharField(max_length=16, choices=Hidden.choices, blank=True, default="", db_default="")
    streaming = models.BooleanField(default=False, db_default=False)
    mid_turn = models.BooleanField(default=False, db_default=False)
    server_context = models.TextField(
        blank=True, default="", db_default="", help_text="Added before the text for the model; never changes."
    )
    replay = models.JSONField(
        default=list, db_default=EMPTY_LIST, blank=True, help_text="Opaque provider data, this turn only."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    # Only user rows:
    accept_number = models.BigIntegerField(null=True, blank=True, help_text="Order of acceptance.")
    queue_order = models.FloatField(null=True, blank=True, help_text="Position in the queue.")
    run_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - null leaves the index
    origin = models.CharField(max_length=32, blank=True, default="", db_default="")
    tier = models.CharField(max_length=16, blank=True, default="", db_default="")
    mode = models.CharField(max_length=8, blank=True, default="", db_default="")
    page_context = models.JSONField(null=True, blank=True)
    permissions: models.JSONField[PermissionsJSON | None, PermissionsJSON | None] = models.JSONField(
        null=True, blank=True
    )
    dropped_at = models.DateTimeField(
        null=True, blank=True, help_text="Removed from the queue without being used."
    )

    objects = MessageQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "sequence"], name="one_message_per_place"),
            models.UniqueConstraint(
                fields=["session", "call_id"],
                condition=Q(kind="tool_result"),
                name="one_result_per_tool_call",
            ),
            models.UniqueConstraint(
                fields=["session", "run_id"], condition=Q(run_id__isnull=False), name="one_message_per_run_id"
            ),
            models.CheckConstraint(
                condition=Q(sequence__isnull=False) | Q(kind="user"),
                name="only_user_messages_wait_for_a_place",
            ),
            models.CheckConstraint(
                condition=Q(kind="user", accept_number__isnull=False)
                | (~Q(kind="user") & Q(accept_number__isnull=True)),
                name="a_user_message_and_only_a_user_message_is_accepted",
            ),
            models.CheckConstraint(
                condition=Q(hidden="older_branch", hidden_with_version__isnull=False)
                | (~Q(hidden="older_branch") & Q(hidden_with_version__isnull=True)),
                name="only_rows_of_an_older_branch_are_hidden_with_a_version",
            ),
        ]
        indexes = [
            models.Index(fields=["-created_at"], name="messages_by_time"),
            models.Index(
                fields=["session", "queue_order"],
                name="pending_messages",
                condition=Q(sequence=None, dropped_at=None),
            ),
            models.Index(
                fields=["turn", "sequence"], name="messages_of_a_turn", condition=Q(turn__isnull=False)
            ),
            models.Index(
                fields=["version_of"], name="versions_of_a_message", condition=Q(version_of__isnull=False)
            ),
            models.Index(
                fields=["hidden_with_version"],
                name="rows_of_an_older_branch",
                condition=Q(hidden_with_version__isnull=False),
            ),
            models.Index(
                fields=["session", "-sequence"],
                name="summaries_of_a_session",
                condition=Q(kind="summary", hidden=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class SearchEntry(models.Model):
    """The searchable words of one message. Only `copilot.chat.search` writes it. The database deletes it with the message."""

    message = models.OneToOneField(
        "Message",
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,  # the migration creates it, with ON DELETE CASCADE
        related_name="+",
    )
    owner_id = models.BigIntegerField()
    sent_at = models.DateTimeField()
    words = SearchVectorField(help_text="Words, each prefixed with the owner's id.")

    class Meta:
        indexes = [
            GinIndex(fields=["words"], fastupdate=False, name="words_of_messages"),
            models.Index(F("owner_id"), F("sent_at").desc(), name="newest_words_of_an_owner"),
        ]

    def __str__(self) -> str:
        return f"words of {self.message_id}"


class SearchProgress(models.Model):
    """The progress of the index: turns that ended up to this time are in it."""

    id = models.SmallAutoField(primary_key=True)
    through = models.DateTimeField()

    def __str__(self) -> str:
        return f"through {self.through}"
