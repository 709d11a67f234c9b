"""Store workspace files and the quota that they use."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.session import Session


class WorkspaceFileQuerySet(models.QuerySet["WorkspaceFile"]):
    def stored(self) -> WorkspaceFileQuerySet:
        """Choose files whose bytes exist, including those in the trash."""
        return self.filter(purged_at=None)

    def available(self) -> WorkspaceFileQuerySet:
        """Choose files that are neither in the trash nor purged."""
        return self.stored().filter(deleted_at=None)


class WorkspaceFile(models.Model):
    """A file of a user's workspace, whose bytes never change. Only `copilot.files.services` writes it."""

    class Scan(models.TextChoices):
        UNSCANNED = "unscanned"
        PENDING = "pending"
        CLEAN = "clean"
        INFECTED = "infected"
        FAILED = "failed"

    class Source(models.TextChoices):
        UPLOAD = "upload"
        AGENT = "agent"
        IMPORT = "import"
        PLATFORM = "platform"
        TOOL_OUTPUT = "tool_output"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="files")
    session = models.ForeignKey(
        Session, on_delete=models.SET_NULL, null=True, blank=True, related_name="files"
    )
    call_id = models.CharField(max_length=128, blank=True, help_text="The tool call whose output this is.")
    name = models.CharField(max_length=255)
    mime = models.CharField(max_length=127)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    storage_key = models.CharField(max_length=255, unique=True)
    scan = models.CharField(max_length=16, choices=Scan.choices, default=Scan.UNSCANNED)
    scan_attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    scanned_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=16, choices=Source.choices)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True)
    purged_at = models.DateTimeField(null=True, blank=True)

    objects = WorkspaceFileQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(size_bytes__gte=0), name="a_file_has_a_size"),
            models.CheckConstraint(
                condition=Q(scan__in=["unscanned", "pending", "clean", "infected", "failed"]),
                name="a_file_is_in_a_known_state_of_scanning",
            ),
            models.CheckConstraint(
                condition=Q(source__in=["upload", "agent", "import", "platform", "tool_output"]),
                name="a_file_comes_from_a_known_source",
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "-created_at", "id"], name="files_of_an_owner"),
            models.Index(fields=["session", "call_id"], name="output_of_a_call", condition=~Q(call_id="")),
            models.Index(
                fields=["deleted_at"],
                name="files_in_the_trash",
                condition=Q(deleted_at__isnull=False, purged_at=None),
            ),
            models.Index(
                fields=["created_at"],
                name="tool_outputs_by_age",
                condition=Q(source="tool_output", purged_at=None),
            ),
            models.Index(
                fields=["created_at"], name="files_to_be_scanned", condition=Q(scan="pending", purged_at=None)
            ),
        ]

    def __str__(self) -> str:
        return self.name


class StorageUse(models.Model):
    """The storage that an owner uses; changed by one conditional update."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="storage_use"
    )
    used_bytes = models.BigIntegerField(default=0)
    used_files = models.IntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(used_bytes__gte=0, used_files__gte=0), name="storage_use_is_never_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.used_bytes} bytes in {self.used_files} files"
