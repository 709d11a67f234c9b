"""Store shares and the files that each of them may serve."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.file import WorkspaceFile
from copilot.models.session import EMPTY_OBJECT, Session


class ShareQuerySet(models.QuerySet["Share"]):
    def unrevoked(self) -> ShareQuerySet:
        """Choose shares that are not revoked. Expired ones can be extended until their payload is purged."""
        return self.filter(revoked_at=None, purged_at=None)


class Share(models.Model):
    """A published snapshot of a session or file. Only `copilot.sharing.services` writes it.

    Database triggers revoke the shares of a deleted session or file in the same transaction.
    """

    class Kind(models.TextChoices):
        CONVERSATION = "conversation"
        FILE = "file"

    class Reason(models.TextChoices):
        REVOKED = "revoked"  # by its owner
        REPLACED = "replaced"  # by a newer share of the same thing
        SESSION_DELETED = "session_deleted"
        FILE_DELETED = "file_deleted"
        OWNER_GONE = "owner_gone"
        TAKEN_DOWN = "taken_down"  # by staff, with the reason in the note

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, null=True, blank=True, related_name="shares"
    )
    file = models.ForeignKey(
        WorkspaceFile, on_delete=models.CASCADE, null=True, blank=True, related_name="shares"
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="shares")
    token = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    through_sequence = models.BigIntegerField(
        null=True, blank=True, help_text="Position of the last message shown."
    )
    payload = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="Everything that is public; never changes.",
    )
    options = models.JSONField(default=dict, db_default=EMPTY_OBJECT, blank=True)
    password_hash = models.CharField(max_length=256, blank=True, default="", db_default="")
    password_version = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Grows with every change, which ends earlier unlocks."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoke_reason = models.CharField(
        max_length=16, choices=Reason.choices, blank=True, default="", db_default=""
    )
    revoke_note = models.CharField(max_length=500, blank=True, default="", db_default="")
    view_count = models.BigIntegerField(default=0, db_default=0)
    last_viewed_at = models.DateTimeField(null=True, blank=True)
    purged_at = models.DateTimeField(null=True, blank=True, help_text="When its payload was emptied.")

    objects = ShareQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="conversation", session__isnull=False, file__isnull=True)
                | Q(kind="file", session__isnull=True, file__isnull=False),
                name="a_share_is_of_one_session_or_one_file",
            ),
            models.CheckConstraint(
                condition=Q(kind="file") | Q(through_sequence__isnull=False),
                name="a_shared_conversation_has_a_last_message",
            ),
            models.CheckConstraint(
                condition=Q(revoked_at__isnull=True, revoke_reason="")
                | (Q(revoked_at__isnull=False) & ~Q(revoke_reason="")),
                name="a_share_that_ended_says_why",
            ),
            models.CheckConstraint(condition=Q(view_count__gte=0), name="views_are_never_negative"),
            models.UniqueConstraint(
                fields=["session"], condition=Q(revoked_at=None), name="one_standing_share_per_session"
            ),
            models.UniqueConstraint(
                fields=["file"], condition=Q(revoked_at=None), name="one_standing_share_per_file"
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "-created_at", "id"], name="shares_of_an_owner"),
            models.Index(
                fields=["expires_at"],
                name="shares_to_be_emptied",
                condition=Q(expires_at__isnull=False, purged_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"share {self.id}"  # never its token: this appears in logs


class SharedFile(models.Model):
    """A file that a share may serve. Only `copilot.sharing.services` writes it."""

    share = models.ForeignKey(Share, on_delete=models.CASCADE, related_name="shared_files")
    file = models.ForeignKey(WorkspaceFile, on_delete=models.CASCADE, related_name="shared_in")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["share", "file"], name="a_share_lists_a_file_once"),
        ]

    def __str__(self) -> str:
        return f"file {self.file_id} of share {self.share_id}"
