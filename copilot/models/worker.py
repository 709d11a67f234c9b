"""Store the heartbeats of workers and the identity of this installation."""

from __future__ import annotations

from uuid import uuid4

from django.db import models
from django.db.models.functions import Now


class WorkerHeartbeat(models.Model):
    """The heartbeat of a worker process. Only `copilot.worker.heartbeat` writes it."""

    worker = models.CharField(max_length=64, primary_key=True)
    lock_key = models.BigIntegerField(unique=True, help_text="Session advisory lock held while it lives.")
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    version = models.CharField(max_length=64)
    queues = models.JSONField(default=list)
    started_at = models.DateTimeField(db_default=Now())
    last_beat_at = models.DateTimeField(db_default=Now())
    draining = models.BooleanField(default=False)
    turns = models.JSONField(default=list, help_text="[turn id, fence] of every turn it runs.")

    def __str__(self) -> str:
        return self.worker


class Installation(models.Model):
    """The one row that names this installation and counts its sweeps. Only `copilot.worker.database_restores` writes it.

    Redis holds a copy. When the copy is ahead of the row, Postgres was restored from a backup.
    """

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    only = models.BooleanField(default=True, editable=False)
    epoch = models.BigIntegerField(default=0, help_text="Grows with every sweep.")
    rebuilt_at = models.DateTimeField(
        null=True, blank=True, help_text="When Redis was last rebuilt after Postgres was restored."
    )

    class Meta:
        constraints = (
            models.CheckConstraint(condition=models.Q(only=True), name="installation_row_is_marked"),
            models.UniqueConstraint(fields=["only"], name="installation_has_one_row"),
        )

    def __str__(self) -> str:
        return str(self.pk)
