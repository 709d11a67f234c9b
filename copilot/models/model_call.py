"""Store model calls."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.session import Session
from copilot.models.turn import Turn


class ModelCallQuerySet(models.QuerySet["ModelCall"]):
    def open(self) -> ModelCallQuerySet:
        """Choose calls whose end is not recorded."""
        return self.filter(ended_at=None)


class ModelCall(models.Model):
    """One model call. Only `copilot.chat.model_calls` writes it. Billing records its cost under the same id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, null=True, blank=True, related_name="model_calls", db_index=False
    )
    session = models.ForeignKey(
        Session,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        db_index=False,  # few rows have one: the partial index below is enough
        related_name="+",
        help_text="Of a side question, which belongs to no turn.",
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
        help_text="Outcome: answered, cut (by the output limit), called (tools), or the error; empty = not ended.",
    )
    partial = models.BooleanField(
        default=False, db_default=False, help_text="It failed after part of its reply had arrived."
    )
    latency_ms = models.PositiveIntegerField(null=True, blank=True)
    first_token_ms = models.PositiveIntegerField(null=True, blank=True)
    cost_microdollars = models.BigIntegerField(null=True, blank=True)
    cost_source = models.CharField(max_length=16, blank=True, default="", db_default="")
    ended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = ModelCallQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["turn", "number"], name="one_model_call_per_number"),
            models.CheckConstraint(
                condition=Q(turn__isnull=False, session__isnull=True)
                | Q(turn__isnull=True, session__isnull=False, purpose="side"),
                name="a_model_call_is_of_a_turn_or_a_side_question",
            ),
        ]
        indexes = [
            models.Index(fields=["-created_at"], name="model_calls_by_time"),
            models.Index(
                fields=["created_at"], name="calls_of_side_questions", condition=Q(session__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} call {self.number}"
