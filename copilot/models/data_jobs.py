"""Store exports, imports and account deletions."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.session import EMPTY_OBJECT, Session


class ExportJob(models.Model):
    """A background export. Only `copilot.exports.services` writes it."""

    class Format(models.TextChoices):
        MARKDOWN = "md"
        JSON = "json"

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        READY = "ready"
        FAILED = "failed"
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="exports")
    session = models.ForeignKey(
        Session,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="exports",
        help_text="Empty = everything in the account.",
    )
    format = models.CharField(max_length=8, choices=Format.choices)
    options = models.JSONField(default=dict, db_default=EMPTY_OBJECT, blank=True)
    state = models.CharField(
        max_length=16, choices=State.choices, default=State.QUEUED, db_default=State.QUEUED
    )
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    storage_key = models.CharField(max_length=255, blank=True, default="", db_default="")
    name = models.CharField(max_length=255, blank=True, default="", db_default="")
    mime = models.CharField(max_length=127, blank=True, default="", db_default="")
    size_bytes = models.BigIntegerField(default=0, db_default=0)
    error = models.CharField(max_length=64, blank=True, default="", db_default="", help_text="Error code.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Available for download until then.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(state="ready") | (~Q(storage_key="") & Q(expires_at__isnull=False)),
                name="a_ready_export_can_be_fetched",
            ),
            models.CheckConstraint(
                condition=~Q(state="failed") | ~Q(error=""), name="a_failed_export_says_why"
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "-created_at", "id"], name="exports_of_an_owner"),
            models.Index(
                fields=["state", "created_at"],
                name="exports_to_be_looked_after",
                condition=Q(state__in=["queued", "running", "ready"]),
            ),
        ]

    def __str__(self) -> str:
        return f"export {self.id}: {self.state}"


class ImportRecord(models.Model):
    """The session that an imported document became. Only `copilot.exports.imports` writes it."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="imports")
    sha256 = models.CharField(max_length=64, help_text="Hash of the uploaded document.")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="imports")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "sha256"], name="a_document_is_imported_once_per_account"
            ),
        ]

    def __str__(self) -> str:
        return f"import of session {self.session_id}"


class AccountDeletion(models.Model):
    """The deletion of an account. Only `copilot.accounts.deletion` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="deletions")
    requested_at = models.DateTimeField(db_default=Now(), editable=False)
    due_at = models.DateTimeField(help_text="Signing in before then cancels it.")
    cancelled_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    phase = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Current step; empty = waiting."
    )
    progress = models.JSONField(
        default=dict, db_default=EMPTY_OBJECT, blank=True, help_text="How much each step has removed so far."
    )
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    next_try_at = models.DateTimeField(null=True, blank=True, help_text="Next attempt after a failure.")
    error = models.CharField(max_length=64, blank=True, default="", db_default="", help_text="Error code.")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user"],
                condition=Q(cancelled_at=None, finished_at=None),
                name="one_pending_deletion_per_account",
            ),
            models.CheckConstraint(
                condition=Q(cancelled_at__isnull=True) | Q(started_at__isnull=True, finished_at__isnull=True),
                name="a_started_deletion_is_not_cancelled",
            ),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True) | Q(started_at__isnull=False),
                name="a_finished_deletion_was_started",
            ),
        ]
        indexes = [
            models.Index(
                fields=["due_at"], name="pending_deletions", condition=Q(cancelled_at=None, finished_at=None)
            ),
        ]

    def __str__(self) -> str:
        return f"account deletion {self.id}"
