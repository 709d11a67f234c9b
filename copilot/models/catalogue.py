"""Store the model catalogue that administrators edit."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Credential(models.Model):
    """A provider's API key, encrypted and never shown again."""

    name = models.CharField(max_length=100, unique=True)
    secret = models.TextField(help_text="Encrypted.")
    changed_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class ModelEntry(models.Model):
    """A model and its capabilities."""

    class Provider(models.TextChoices):
        OPENAI_CHAT = "openai_chat"
        OPENAI_RESPONSES = "openai_responses"
        ANTHROPIC = "anthropic"
        SCRIPTED = "scripted"

    class ReasoningStyle(models.TextChoices):
        NONE = "none"
        BUDGET = "budget"
        ADAPTIVE = "adaptive"
        EFFORT = "effort"
        GATEWAY = "gateway"

    name = models.CharField(max_length=100, unique=True, help_text="Name that people see.")
    provider = models.CharField(max_length=32, choices=Provider.choices)
    base_url = models.CharField(max_length=500, blank=True)
    model = models.CharField(max_length=128, help_text="The provider's id of the model.")
    credential = models.ForeignKey(
        Credential, on_delete=models.PROTECT, null=True, blank=True, related_name="entries"
    )
    context_window = models.PositiveIntegerField(default=0, help_text="In tokens; 0 means unknown.")
    max_output_tokens = models.PositiveIntegerField(default=0, help_text="0 = the field is not sent.")
    supports_tools = models.BooleanField(default=True)
    supports_images = models.BooleanField(default=False)
    media_in_tool_results = models.BooleanField(default=False)
    can_reason = models.BooleanField(default=False)
    reasoning_style = models.CharField(
        max_length=16, choices=ReasoningStyle.choices, default=ReasoningStyle.NONE
    )
    replays_reasoning = models.BooleanField(
        default=False,
        db_default=False,
        help_text="For chat servers that refuse a turn with tools unless its reasoning_content is sent back.",
    )
    efforts = models.JSONField(default=list, blank=True, help_text="Allowed efforts, strongest first.")
    first_token_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For slow local models."
    )
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(
        default=1, help_text="Grows with every edit, which resets what was learned about the model."
    )

    class Meta:
        verbose_name = "model"

    def __str__(self) -> str:
        return self.name


class TierEntry(models.Model):
    """A model's position in the chain of a tier: the first is used, the others are its fallbacks in order."""

    class Tier(models.TextChoices):
        STANDARD = "standard"
        ADVANCED = "advanced"
        SMALL = "small"

    tier = models.CharField(max_length=16, choices=Tier.choices)
    position = models.PositiveSmallIntegerField()
    entry = models.ForeignKey(ModelEntry, on_delete=models.PROTECT, related_name="tiers")

    class Meta:
        verbose_name_plural = "tier entries"
        ordering = ["tier", "position"]
        constraints = [
            models.UniqueConstraint(fields=["tier", "position"], name="one_model_per_place_in_a_tier"),
            models.UniqueConstraint(fields=["tier", "entry"], name="a_model_once_per_tier"),
            models.CheckConstraint(
                condition=Q(tier__in=["standard", "advanced", "small"]), name="a_known_tier"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tier} {self.position}"


class ModelLesson(models.Model):
    """A limit of a model that was learned from refused requests and is lower than its entry says."""

    name = models.CharField(max_length=200, unique=True, help_text="Id of the catalogue entry.")
    fingerprint = models.CharField(max_length=64, help_text="Version of the entry this was learned for.")
    lesson = models.JSONField()
    learned_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name
