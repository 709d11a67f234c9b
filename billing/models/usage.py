"""Usage records, monthly sums, usage windows and resets."""

from __future__ import annotations

from uuid import uuid4

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing import pricing
from billing.models.account import Account
from billing.models.ledger import LedgerEntry
from billing.models.policy import ModelPrice


class UsageRecord(models.Model):
    """The cost of one provider call, written once by `billing.usage`. Platform calls have no account."""

    call_id = models.UUIDField(primary_key=True, editable=False)
    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="usage_records",
        db_index=False,  # the index below begins with it
    )
    occurred_at = models.DateTimeField(help_text="When the call ended; decides day and week.")
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128)
    purpose = models.CharField(max_length=16)
    session_ref = models.CharField(max_length=64, blank=True)
    turn_ref = models.CharField(max_length=64, blank=True)
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cache_read_tokens = models.BigIntegerField()
    cache_write_5m_tokens = models.BigIntegerField()
    cache_write_1h_tokens = models.BigIntegerField()
    reported_microdollars = models.BigIntegerField(null=True, blank=True)
    cost_microdollars = models.BigIntegerField()
    cost_source = models.CharField(max_length=16)
    price = models.ForeignKey(
        ModelPrice, on_delete=models.PROTECT, null=True, blank=True, related_name="usage_records"
    )
    estimated = models.BooleanField()
    aborted = models.BooleanField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(cost_source__in=list(pricing.COST_SOURCES)),
                name="a_cost_has_a_known_source",
            ),
            models.CheckConstraint(
                condition=Q(cost_microdollars__gte=0) & Q(reported_microdollars__gte=0),
                name="costs_are_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(
                    input_tokens__gte=0,
                    output_tokens__gte=0,
                    cache_read_tokens__gte=0,
                    cache_write_5m_tokens__gte=0,
                    cache_write_1h_tokens__gte=0,
                ),
                name="token_counts_are_never_negative",
            ),
        ]
        indexes = [
            models.Index(fields=["account", "occurred_at"], name="usage_of_an_account"),
            models.Index(fields=["occurred_at"], name="usage_by_time"),
            # These serve the filters of the admin list.
            models.Index(fields=["cost_source", "occurred_at"], name="usage_by_source"),
            models.Index(fields=["occurred_at"], name="usage_that_was_aborted", condition=Q(aborted=True)),
            models.Index(
                fields=["occurred_at"], name="usage_that_was_estimated", condition=Q(estimated=True)
            ),
            # Partial indexes for the list of models that still need a price; few rows once prices are set.
            models.Index(
                fields=["provider", "model", "occurred_at"],
                name="usage_of_unpriced_models",
                condition=Q(price__isnull=True),
            ),
            models.Index(
                fields=["provider", "model", "occurred_at"],
                name="usage_of_unknown_cost",
                condition=Q(cost_source="UNKNOWN"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} call {self.call_id}"


class MonthlyUsage(models.Model):
    """The monthly sum that replaces usage records after their retention; only `billing.usage` writes it."""

    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="monthly_usage",
        db_index=False,  # the unique index begins with it
    )
    month = models.DateField(help_text="The first day of the month.")
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128)
    calls = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cache_read_tokens = models.BigIntegerField()
    cache_write_5m_tokens = models.BigIntegerField()
    cache_write_1h_tokens = models.BigIntegerField()
    cost_microdollars = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "monthly usage"
        constraints = [
            models.UniqueConstraint(
                fields=["account", "month", "provider", "model"],
                name="one_sum_per_account_month_and_model",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(cost_microdollars__gte=0, calls__gt=0), name="a_sum_is_of_something"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} in {self.month:%Y-%m}"


class UsageWindow(models.Model):
    """The used part of a daily or weekly limit; only `billing.usage` writes it."""

    class Kind(models.TextChoices):
        DAY = "DAY"
        WEEK = "WEEK"

    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="usage_windows",
        db_index=False,  # the unique index begins with it
    )
    kind = models.CharField(max_length=8, choices=Kind.choices)
    starts_on = models.DateField()
    used_microdollars = models.BigIntegerField()
    version = models.BigIntegerField(
        help_text="Grows by one with every change, so that copies know whether they are current."
    )
    updated_at = models.DateTimeField()  # not indexed, to keep updates of a busy user's row cheap
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["account", "kind", "starts_on"], name="one_row_per_account_and_window"
            ),
            models.CheckConstraint(condition=Q(used_microdollars__gte=0), name="use_is_never_negative"),
            models.CheckConstraint(condition=Q(kind__in=["DAY", "WEEK"]), name="a_window_is_a_day_or_a_week"),
        ]
        indexes = [models.Index(fields=["starts_on", "id"], name="windows_by_start_and_number")]

    def __str__(self) -> str:
        return f"{self.kind} from {self.starts_on}"


class UsageReset(models.Model):
    """Usage that was forgiven, in which windows and why; only `billing.usage` writes it."""

    class Kind(models.TextChoices):
        PAID = "PAID"
        STAFF = "STAFF"

    class State(models.TextChoices):
        APPLIED = "APPLIED"
        REFUNDED = "REFUNDED"  # undone and its price refunded; it forgives nothing

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="usage_resets",
        db_index=False,  # the index below begins with it
    )
    kind = models.CharField(max_length=8, choices=Kind.choices)
    state = models.CharField(max_length=8, choices=State.choices, default=State.APPLIED)
    day = models.DateField(help_text="The day that was reset.")
    week = models.DateField(help_text="The Monday of the week that was reset.")
    daily_forgiven_microdollars = models.BigIntegerField()
    weekly_forgiven_microdollars = models.BigIntegerField()
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001 - many have none
    ledger_entry = models.ForeignKey(
        LedgerEntry, on_delete=models.PROTECT, null=True, blank=True, related_name="usage_resets"
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "idempotency_key"], name="one_reset_per_key"),
            models.CheckConstraint(
                condition=Q(daily_forgiven_microdollars__gte=0, weekly_forgiven_microdollars__gte=0),
                name="forgiven_amounts_are_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(kind="PAID", ledger_entry__isnull=False, state__in=["APPLIED", "REFUNDED"])
                | Q(kind="STAFF", ledger_entry__isnull=True, state="APPLIED"),
                name="a_paid_reset_names_its_price",
            ),
        ]
        indexes = [
            models.Index(fields=["account", "day"], name="resets_of_an_account"),
            models.Index(fields=["created_at"], name="resets_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} reset {self.pk}"
