"""The limit policy, the tiers and the model prices that staff set."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing import plans
from billing.models.account import TIER_CHOICES

POLICY_DEFAULTS = plans.PolicyValues()
POLICY_ID = 1  # the table has exactly one row


class LimitPolicy(models.Model):
    """The one row of installation-wide policy, written by staff only."""

    class UnknownCost(models.TextChoices):
        DEFAULT = "DEFAULT", "Count the amount below"
        ZERO = "ZERO", "Count nothing"

    id = models.PositiveSmallIntegerField(primary_key=True, default=POLICY_ID, editable=False)
    daily_base_microdollars = models.BigIntegerField(
        default=POLICY_DEFAULTS.daily_base_microdollars,
        help_text="Before the tier's multiplier. 0 = unlimited.",
    )
    weekly_base_microdollars = models.BigIntegerField(
        default=POLICY_DEFAULTS.weekly_base_microdollars,
        help_text="Before the tier's multiplier. 0 = unlimited.",
    )
    reset_cost_cents = models.BigIntegerField(
        default=POLICY_DEFAULTS.reset_cost_cents, help_text="0 = no paid reset."
    )
    max_paid_resets_per_day = models.PositiveIntegerField(default=POLICY_DEFAULTS.max_paid_resets_per_day)
    turn_hold_microdollars = models.BigIntegerField(
        default=POLICY_DEFAULTS.turn_hold_microdollars,
        help_text="Reserved from a user's limit while a turn runs, so that parallel turns cannot spend it twice. 0 = no holds.",
    )
    turn_ceiling_microdollars = models.BigIntegerField(
        default=POLICY_DEFAULTS.turn_ceiling_microdollars, help_text="0 = no ceiling."
    )
    limit_binds_running_turns = models.BooleanField(default=POLICY_DEFAULTS.limit_binds_running_turns)
    unknown_cost = models.CharField(
        max_length=8, choices=UnknownCost.choices, default=POLICY_DEFAULTS.unknown_cost
    )
    unknown_cost_microdollars = models.BigIntegerField(default=POLICY_DEFAULTS.unknown_cost_microdollars)
    max_call_cost_microdollars = models.BigIntegerField(
        default=POLICY_DEFAULTS.max_call_cost_microdollars,
        help_text="A cost reported above this is not trusted.",
    )
    payments_enabled = models.BooleanField(default=POLICY_DEFAULTS.payments_enabled)
    grace_days = models.PositiveIntegerField(default=POLICY_DEFAULTS.grace_days)
    top_up_min_cents = models.BigIntegerField(default=POLICY_DEFAULTS.top_up_min_cents)
    top_up_max_cents = models.BigIntegerField(default=POLICY_DEFAULTS.top_up_max_cents)
    auto_top_up_max_per_day = models.PositiveIntegerField(default=POLICY_DEFAULTS.auto_top_up_max_per_day)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = verbose_name_plural = "limit policy"
        constraints = [
            models.CheckConstraint(condition=Q(id=POLICY_ID), name="there_is_one_limit_policy"),
            models.CheckConstraint(
                condition=Q(unknown_cost__in=["DEFAULT", "ZERO"]), name="an_unknown_cost_has_a_known_rule"
            ),
            models.CheckConstraint(
                condition=Q(
                    daily_base_microdollars__gte=0,
                    weekly_base_microdollars__gte=0,
                    reset_cost_cents__gte=0,
                    turn_hold_microdollars__gte=0,
                    turn_ceiling_microdollars__gte=0,
                    unknown_cost_microdollars__gte=0,
                    max_call_cost_microdollars__gte=0,
                    top_up_min_cents__gte=0,
                    top_up_max_cents__gte=0,
                ),
                name="policy_amounts_are_never_negative",
            ),
        ]

    def __str__(self) -> str:
        return "limit policy"


class TierPolicy(models.Model):
    """The terms and price of one tier, written by staff only."""

    tier = models.CharField(max_length=16, choices=TIER_CHOICES, unique=True)
    multiplier = models.PositiveIntegerField(help_text="Times the base limits.")
    turns_at_once = models.PositiveIntegerField(
        default=plans.DEFAULT_TURNS_AT_ONCE,
        db_default=plans.DEFAULT_TURNS_AT_ONCE,
        help_text="Turns of one user that run at the same time; more are queued. 0 = no limit.",
    )
    stripe_price_id = models.CharField(max_length=255, null=True, blank=True, unique=True)
    monthly_cents = models.BigIntegerField(default=0)
    trial_days = models.PositiveIntegerField(default=0)
    selectable = models.BooleanField(default=False, help_text="Users can subscribe to it.")
    blurb = models.TextField(blank=True, help_text="Shown on the plan's card.")
    model_tiers = ArrayField(
        models.CharField(max_length=16), default=list, blank=True, help_text="Empty = all."
    )
    modes = ArrayField(models.CharField(max_length=8), default=list, blank=True, help_text="Empty = all.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "tier policies"
        constraints = [
            models.CheckConstraint(condition=Q(tier__in=plans.TIERS), name="a_tier_policy_has_a_known_tier"),
            models.CheckConstraint(condition=Q(multiplier__gte=1), name="a_tier_never_lowers_the_base"),
            models.CheckConstraint(condition=Q(monthly_cents__gte=0), name="a_plan_price_is_never_negative"),
            models.CheckConstraint(
                condition=Q(tier__in=["PRO", "BUSINESS"]) | Q(stripe_price_id__isnull=True),
                name="free_and_enterprise_are_not_sold",
            ),
        ]

    def __str__(self) -> str:
        return self.tier


class ModelPrice(models.Model):
    """The price of a model from a moment on. A change is a new row, so that old calls keep their price."""

    class Kind(models.TextChoices):
        METERED = "METERED"
        FLAT_RATE = "FLAT_RATE"

    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128, help_text="The exact name, or a prefix that ends in *.")
    kind = models.CharField(max_length=16, choices=Kind.choices, default=Kind.METERED)
    input_per_million_microdollars = models.BigIntegerField(default=0)
    output_per_million_microdollars = models.BigIntegerField(default=0)
    cache_read_per_million_microdollars = models.BigIntegerField(default=0)
    cache_write_5m_per_million_microdollars = models.BigIntegerField(default=0)
    cache_write_1h_per_million_microdollars = models.BigIntegerField(default=0)
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "model", "effective_from"], name="one_price_per_model_and_instant"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["METERED", "FLAT_RATE"]), name="a_price_has_a_known_kind"
            ),
            models.CheckConstraint(
                condition=Q(
                    input_per_million_microdollars__gte=0,
                    output_per_million_microdollars__gte=0,
                    cache_read_per_million_microdollars__gte=0,
                    cache_write_5m_per_million_microdollars__gte=0,
                    cache_write_1h_per_million_microdollars__gte=0,
                ),
                name="prices_are_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(model__regex=r"^([^*]+|[^*]*\*)$"), name="a_star_ends_the_model_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.model} from {self.effective_from:%Y-%m-%d}"
