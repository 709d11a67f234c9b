"""Store questions that agents ask people."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.session import Session
from copilot.models.turn import Turn


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
