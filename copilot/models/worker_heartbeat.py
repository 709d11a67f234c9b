"""Store the heartbeats of workers."""

from __future__ import annotations

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
