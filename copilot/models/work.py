"""What a turn leaves besides messages: model calls, questions and approvals (A11, A12, A19)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.events import JSON
from copilot.models.conversations import Session, Turn


class ModelCall(models.Model):
    """One call of a model; `copilot.usage` alone writes it. Its money is billing's record of the same id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, null=True, blank=True, related_name="model_calls", db_index=False
    )
    session = models.ForeignKey(
        Session,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        db_index=False,  # few bear one: the partial index below is enough
        related_name="+",
        help_text="Of a question aside, which no turn has caused (A30.3).",
    )
    number = models.PositiveIntegerField()
    purpose = models.CharField(max_length=16, default="reply", db_default="reply")
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128)
    request_id = models.CharField(max_length=128, blank=True, default="", db_default="")
    input_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_read_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_write_5m_tokens = models.BigIntegerField(default=0, db_default=0)
    cache_write_1h_tokens = models.BigIntegerField(default=0, db_default=0)
    output_tokens = models.BigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.BigIntegerField(default=0, db_default=0)
    estimated = models.BooleanField(default=False, db_default=False)
    aborted = models.BooleanField(default=False, db_default=False)
    ending = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="What its reply came to: answered, cut (by the output limit), called (tools), or what it failed with; empty: to no end.",
    )
    partial = models.BooleanField(
        default=False, db_default=False, help_text="It failed, though text or calls of its reply had come."
    )
    latency_ms = models.PositiveIntegerField(null=True, blank=True)
    first_token_ms = models.PositiveIntegerField(null=True, blank=True)
    cost_microdollars = models.BigIntegerField(null=True, blank=True)
    cost_source = models.CharField(max_length=16, blank=True, default="", db_default="")
    ended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["turn", "number"], name="one_model_call_per_number"),
            models.CheckConstraint(
                condition=Q(turn__isnull=False, session__isnull=True)
                | Q(turn__isnull=True, session__isnull=False, purpose="side"),
                name="a_model_call_is_a_turns_or_a_question_aside",
            ),
        ]
        indexes = [
            models.Index(fields=["created_at"], name="questions_aside", condition=Q(session__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.model} call {self.number}"


class Question(models.Model):
    """A question the agent put to a person; `copilot.questions` alone writes it (A12)."""

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

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["turn"], condition=Q(outcome="open"), name="one_open_question_per_turn"
            ),
            models.UniqueConstraint(fields=["turn", "call_id"], name="one_question_per_call"),
        ]

    def __str__(self) -> str:
        return self.question


class Approval(models.Model):
    """A call that waits for a person's word; `copilot.approvals` alone writes it (A11)."""

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
        default=0, db_default=0, help_text="Place among the calls of its reply."
    )
    tool = models.CharField(max_length=64)
    arguments = models.JSONField(help_text="As the model gave them.")
    final_arguments = models.JSONField(null=True, blank=True, help_text="As a person changed them.")
    pinned: models.JSONField[dict[str, JSON] | None, dict[str, JSON] | None] = models.JSONField(
        null=True, blank=True, help_text="Ids and versions that the arguments meant when it was asked."
    )
    reason = models.CharField(max_length=500, blank=True, help_text="Why a person is asked.")
    block_reason = models.CharField(
        max_length=500, blank=True, help_text="Why it was not approved by itself."
    )
    billable = models.BooleanField(default=False, db_default=False)
    manual_only = models.BooleanField(
        default=False, db_default=False, help_text="Asked about each time, whatever the chat allows."
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
