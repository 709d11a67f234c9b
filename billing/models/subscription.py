"""Subscriptions as mirrored from Stripe, attempted plan changes, and stored Stripe events."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.account import TIER_CHOICES, Account


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    def overdue(self, now: datetime) -> SubscriptionQuerySet:
        """Choose subscriptions that still entitle although their grace period has ended."""
        return self.filter(status="past_due", entitles=True, grace_until__lte=now)


class Subscription(models.Model):
    """The mirror of an account's Stripe subscription, written only by `billing.subscriptions`."""

    account = models.OneToOneField(Account, on_delete=models.PROTECT, related_name="subscription")
    stripe_id = models.CharField(max_length=255, unique=True)
    status = models.CharField(max_length=32)
    price_id = models.CharField(max_length=255, blank=True)
    tier = models.CharField(  # noqa: DJ001 - a price nobody knows has no tier
        max_length=16, choices=TIER_CHOICES, null=True, blank=True
    )
    item_id = models.CharField(max_length=255, blank=True)
    period_start = models.DateTimeField(null=True, blank=True)
    period_end = models.DateTimeField(null=True, blank=True)
    cancel_at_period_end = models.BooleanField(default=False)
    schedule_id = models.CharField(max_length=255, blank=True)
    trial_end = models.DateTimeField(null=True, blank=True)
    grace_until = models.DateTimeField(null=True, blank=True)
    entitles = models.BooleanField(
        default=False,
        help_text="Whether it sets the account's tier; false once it has ended or is overdue for too long.",
    )
    synced_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["grace_until"], name="subscriptions_in_grace", condition=Q(grace_until__isnull=False)
            )
        ]

    def __str__(self) -> str:
        return f"subscription of account {self.account_id}"


class PlanChange(models.Model):
    """One attempt to change a plan, kept forever; only `billing.subscriptions` writes it."""

    class Kind(models.TextChoices):
        CHECKOUT = "CHECKOUT"
        UPGRADE = "UPGRADE"
        DOWNGRADE = "DOWNGRADE"
        CANCEL = "CANCEL"
        KEEP = "KEEP"
        GRANT = "GRANT"

    class State(models.TextChoices):
        STARTED = "STARTED"
        DONE = "DONE"
        FAILED = "FAILED"

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="plan_changes",
        db_index=False,  # the index below begins with it
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    from_tier = models.CharField(max_length=16, choices=TIER_CHOICES)
    to_tier = models.CharField(max_length=16, choices=TIER_CHOICES)
    state = models.CharField(max_length=8, choices=State.choices, default=State.STARTED)
    checkout_session_id = models.CharField(max_length=255, null=True, blank=True, unique=True)
    subscription_id = models.CharField(max_length=255, blank=True)
    schedule_id = models.CharField(max_length=255, blank=True)
    error = models.TextField(blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["account"],
                condition=Q(kind="CHECKOUT", state="STARTED"),
                name="one_open_checkout_per_account",
            )
        ]
        indexes = [
            models.Index(fields=["account", "-created_at"], name="plan_changes_of_an_account"),
            models.Index(fields=["created_at"], name="plan_changes_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class StripeEvent(models.Model):
    """A webhook event as received, and how far it was applied; only `billing.stripe.webhook_events` writes it."""

    class State(models.TextChoices):
        RECEIVED = "RECEIVED"
        PROCESSING = "PROCESSING"
        DONE = "DONE"
        FAILED = "FAILED"
        IGNORED = "IGNORED"

    event_id = models.CharField(max_length=255, unique=True)
    type = models.CharField(max_length=100)
    api_version = models.CharField(max_length=64, blank=True)
    livemode = models.BooleanField()
    created = models.DateTimeField(help_text="Time at Stripe.")
    payload = models.JSONField(null=True, blank=True, help_text="Emptied after 180 days.")
    state = models.CharField(max_length=16, choices=State.choices, default=State.RECEIVED)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(db_default=Now(), help_text="Not retried before this time.")
    claimed_until = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    processed_at = models.DateTimeField(null=True, blank=True)
    received_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="PROCESSING", claimed_until__isnull=False)
                | (~Q(state="PROCESSING") & Q(claimed_until__isnull=True)),
                name="what_is_being_applied_is_claimed",
            )
        ]
        indexes = [
            models.Index(fields=["state", "received_at"], name="events_by_state"),
            models.Index(fields=["type", "id"], name="events_by_type"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"
