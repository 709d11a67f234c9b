"""Store turns."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.chat.permissions import PermissionsJSON
from copilot.models.session import EMPTY_LIST, EMPTY_OBJECT, Session


class TurnQuerySet(models.QuerySet["Turn"]):
    def unfinished(self) -> TurnQuerySet:
        return self.filter(status__in=Turn.UNFINISHED)

    def queued(self) -> TurnQuerySet:
        return self.filter(status=Turn.Status.QUEUED)

    def running(self) -> TurnQuerySet:
        return self.filter(status=Turn.Status.RUNNING)

    def waiting(self) -> TurnQuerySet:
        """Choose turns that wait for a person."""
        return self.filter(status=Turn.Status.WAITING)

    def visible_to(self, user_id: int) -> TurnQuerySet:
        return self.filter(session__owner=user_id, session__deleted_at=None)


class Turn(models.Model):
    """One run of the agent in answer to messages. Only modules of `copilot.chat` write it."""

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        WAITING = "waiting"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Purpose(models.TextChoices):
        REPLY = "reply"
        COMPACTION = "compaction"

    class Throttle(models.TextChoices):
        USER = "user", "as many turns of its user run as the plan allows"
        ADDRESS = "address", "as many turns from its network address run as the installation allows"

    UNFINISHED = (Status.QUEUED, Status.RUNNING, Status.WAITING)
    ENDINGS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="turns", db_index=False)
    status = models.CharField(max_length=16, choices=Status.choices)
    origin = models.CharField(max_length=32)
    run_ids = models.JSONField(default=list, db_default=EMPTY_LIST, blank=True)
    tier = models.CharField(max_length=16, blank=True, default="", db_default="")
    mode = models.CharField(max_length=8, blank=True, default="", db_default="")
    permissions: models.JSONField[PermissionsJSON, PermissionsJSON] = models.JSONField()
    inbound_context = models.JSONField(
        default=dict,
        db_default=EMPTY_OBJECT,
        blank=True,
        help_text="Where its message came from: the language, and the place on a chat platform to answer.",
    )
    parent = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="children",
        db_index=False,
        help_text="The turn that started this one and pays for it.",
    )
    budget_microdollars = models.BigIntegerField(
        default=0, db_default=0, help_text="Budget from its parent; 0 = the default."
    )
    payer_id = models.IntegerField(null=True, blank=True, help_text="The session's owner, who pays for it.")
    address_hash = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="A keyed hash of the network address it came from, to count those that run at once.",
    )
    throttled_by = models.CharField(
        max_length=8,
        choices=Throttle.choices,
        blank=True,
        default="",
        db_default="",
        help_text="Why it waits although a worker is free.",
    )
    purpose = models.CharField(
        max_length=16,
        choices=Purpose.choices,
        default=Purpose.REPLY,
        db_default=Purpose.REPLY,
        help_text="Purpose: an answer, or a compaction only.",
    )
    focus = models.CharField(
        max_length=2000,
        blank=True,
        default="",
        db_default="",
        help_text="What a person asked the summary to keep.",
    )
    paused_at = models.DateTimeField(null=True, blank=True, help_text="Start of its wait for approvals.")
    paused_seconds = models.FloatField(
        default=0.0, db_default=0.0, help_text="Time spent waiting, which does not count toward limits."
    )
    accepted_through = models.BigIntegerField(help_text="The highest accept number this turn answers.")
    fence = models.BigIntegerField()
    token = models.UUIDField(help_text="Owner token of the session's lease.")
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    handovers = models.PositiveSmallIntegerField(default=0, db_default=0)
    worker = models.CharField(max_length=64, blank=True, default="", db_default="")
    model = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="Name of the model, chosen at the start.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    queued_at = models.DateTimeField(db_default=Now())
    dispatched_at = models.DateTimeField(null=True, blank=True)
    dispatch_count = models.PositiveIntegerField(default=0, db_default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    attempt_started_at = models.DateTimeField(
        null=True, blank=True, help_text="When the current attempt started."
    )
    recovered_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stop_through = models.BigIntegerField(
        null=True, blank=True, help_text="The highest accept number the stop covers."
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    failure_code = models.CharField(max_length=32, blank=True, default="", db_default="")
    limit_code = models.CharField(max_length=32, blank=True, default="", db_default="")
    cancel_reason = models.CharField(max_length=16, blank=True, default="", db_default="")
    summary = models.JSONField(
        default=dict, db_default=EMPTY_OBJECT, blank=True, help_text="Duration, rounds, tokens."
    )

    objects = TurnQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session"],
                condition=Q(status__in=["queued", "running", "waiting"]),
                name="one_unfinished_turn_per_session",
            ),
            models.CheckConstraint(
                condition=Q(status="failed", failure_code__gt="")
                | (~Q(status="failed") & Q(failure_code="")),
                name="a_failed_turn_and_only_a_failed_turn_has_a_code",
            ),
            models.CheckConstraint(
                condition=Q(status__in=["succeeded", "failed", "cancelled"], ended_at__isnull=False)
                | Q(status__in=["queued", "running", "waiting"], ended_at__isnull=True),
                name="an_ended_turn_and_only_an_ended_turn_has_an_end",
            ),
            models.CheckConstraint(
                condition=~Q(status="running") | Q(started_at__isnull=False),
                name="a_running_turn_has_started",
            ),
        ]
        indexes = [
            models.Index(fields=["status", "queued_at"], name="unfinished_turns", condition=Q(ended_at=None)),
            models.Index(fields=["session", "-created_at"], name="turns_of_a_session"),
            models.Index(fields=["-created_at"], name="turns_by_time"),
            models.Index(
                fields=["ended_at"],
                include=["recovered_at", "status"],  # the endings of a day are counted from it alone
                name="ended_turns",
                condition=Q(ended_at__isnull=False),
            ),
            models.Index(fields=["parent"], name="turns_of_a_parent", condition=Q(parent__isnull=False)),
            models.Index(
                fields=["payer_id", "status", "created_at"],
                name="turns_at_once_of_a_payer",
                condition=Q(parent=None, status__in=["queued", "running"]),
            ),
            models.Index(
                fields=["address_hash", "status", "created_at"],
                name="turns_at_once_of_an_address",
                condition=Q(address_hash__isnull=False) & Q(parent=None, status__in=["queued", "running"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.status} turn {self.id}"
