"""Store which sessions wait for the result of work that they started."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from copilot.models.message import Message
from copilot.models.session import Session
from copilot.models.turn import Turn


class OwedResult(models.Model):
    """A prompt whose result its parent session is owed. Only `copilot.chat.follow_ups` writes it."""

    class Outcome(models.TextChoices):
        DELIVERED = "delivered"  # by a message of its own
        REPORTED = "reported"  # a tool call had returned the result already
        DROPPED = "dropped"  # the parent was stopped, archived or deleted

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="owed_results", db_index=False
    )
    turn = models.ForeignKey(
        Turn,
        on_delete=models.CASCADE,
        related_name="owed_results",
        help_text="The turn that started the work.",
    )
    child = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_index=False)
    run_id = models.CharField(max_length=128, help_text="Of the prompt in the child session.")
    message = models.ForeignKey(
        Message, on_delete=models.SET_NULL, null=True, blank=True, related_name="owed_results"
    )
    outcome = models.CharField(max_length=16, choices=Outcome.choices, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["child", "run_id"], name="one_follow_up_per_prompt"),
            models.CheckConstraint(
                condition=Q(message=None) | Q(outcome="delivered"),
                name="only_a_delivered_follow_up_has_a_message",
            ),
        ]
        indexes = [
            models.Index(fields=["session"], name="open_follow_ups", condition=Q(outcome="")),
            models.Index(fields=["session"], name="follow_ups_of_a_session"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} ({self.outcome or 'open'})"
