"""Store approvals of tool calls and questions that agents ask people."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from config.core.json_values import JSON
from copilot.models.session import Session
from copilot.models.turn import Turn


class ApprovalQuerySet(models.QuerySet["Approval"]):
    def requested(self) -> ApprovalQuerySet:
        """Choose calls that wait for a decision."""
        return self.filter(state=Approval.State.REQUESTED)

    def visible_to(self, user_id: int) -> ApprovalQuerySet:
        return self.filter(session__owner=user_id, session__deleted_at=None)


class Approval(models.Model):
    """A tool call that needs a person's approval. Only `copilot.chat.approvals` writes it."""

    class State(models.TextChoices):
        REQUESTED = "requested"
        APPROVED = "approved"
        REJECTED = "rejected"
        ABANDONED = "abandoned"
        CANCELLED = "cancelled"
        RUNNING = "running"
        DONE = "done"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="approvals")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="approvals")
    call_id = models.CharField(max_length=128)
    position = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Position among the calls of its reply."
    )
    tool = models.CharField(max_length=64)
    arguments = models.JSONField(help_text="Arguments from the model.")
    final_arguments = models.JSONField(null=True, blank=True, help_text="Arguments after a person's edit.")
    pinned: models.JSONField[dict[str, JSON] | None, dict[str, JSON] | None] = models.JSONField(
        null=True,
        blank=True,
        help_text="Ids and versions that the arguments referred to when approval was requested.",
    )
    reason = models.CharField(max_length=500, blank=True, help_text="Why approval is needed.")
    block_reason = models.CharField(
        max_length=500, blank=True, help_text="Why it was not approved automatically."
    )
    billable = models.BooleanField(default=False, db_default=False)
    manual_only = models.BooleanField(
        default=False, db_default=False, help_text="Needs approval every time, whatever the chat allows."
    )
    estimate_microdollars = models.BigIntegerField(null=True, blank=True)
    reserved_microdollars = models.BigIntegerField(default=0)
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    automatic = models.BooleanField(default=False)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    feedback = models.CharField(max_length=2000, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["turn", "call_id"], name="one_approval_per_call"),
            models.CheckConstraint(
                condition=Q(
                    state__in=[
                        "requested",
                        "approved",
                        "rejected",
                        "abandoned",
                        "cancelled",
                        "running",
                        "done",
                    ]
                ),
                name="an_approval_is_in_a_known_state",
            ),
        ]
        indexes = [
            models.Index(fields=["session"], name="open_approvals", condition=Q(state="requested")),
        ]

    def __str__(self) -> str:
        return f"{self.tool}: {self.state}"


class QuestionQuerySet(models.QuerySet["Question"]):
    def open(self) -> QuestionQuerySet:
        return self.filter(outcome=Question.Outcome.OPEN)

    def visible_to(self, user_id: int) -> QuestionQuerySet:
        return self.filter(session__owner=user_id, session__deleted_at=None)


class Question(models.Model):
    """A question that the agent asks a person. Only `copilot.chat.questions` writes it."""

    class Outcome(models.TextChoices):
        OPEN = "open"
        ANSWERED = "answered"
        TIMED_OUT = "timed_out"
        CANCELLED = "cancelled"
        SUPERSEDED = "superseded"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="questions")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="questions")
    call_id = models.CharField(max_length=128)
    question = models.CharField(max_length=1000)
    choices = models.JSONField(default=list, blank=True)
    allow_text = models.BooleanField(default=True)
    deadline = models.DateTimeField()
    outcome = models.CharField(max_length=16, choices=Outcome.choices, default=Outcome.OPEN)
    answer = models.CharField(max_length=4000, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = QuestionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["turn"], condition=Q(outcome="open"), name="one_open_question_per_turn"
            ),
            models.UniqueConstraint(fields=["turn", "call_id"], name="one_question_per_call"),
        ]

    def __str__(self) -> str:
        return self.question
