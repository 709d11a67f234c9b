"""Top-ups and the settings of automatic top-ups."""

from __future__ import annotations

from uuid import uuid4

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.account import Account


class TopUpQuerySet(models.QuerySet["TopUp"]):
    def unfinished(self) -> TopUpQuerySet:
        return self.filter(state__in=TopUp.UNFINISHED)


class TopUp(models.Model):
    """One purchase of credits, from checkout to credit; only `billing.top_ups` writes it."""

    class Kind(models.TextChoices):
        MANUAL = "MANUAL"
        AUTO = "AUTO"

    class State(models.TextChoices):
        CREATED = "CREATED"
        OPEN = "OPEN"
        PAID = "PAID"
        FAILED = "FAILED"
        EXPIRED = "EXPIRED"
        REVIEW = "REVIEW"
        PARTLY_REVERSED = "PARTLY_REVERSED"
        REVERSED = "REVERSED"

    UNFINISHED = (State.CREATED, State.OPEN)

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="top_ups",
        db_index=False,  # the index below begins with it
    )
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.MANUAL)
    amount_cents = models.BigIntegerField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.CREATED)
    checkout_session_id = models.CharField(max_length=255, null=True, blank=True, unique=True)
    checkout_url = models.TextField(blank=True, help_text="Payment page while it is open.")
    payment_intent_id = models.CharField(max_length=255, null=True, blank=True, unique=True)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001 - many have none
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = TopUpQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "idempotency_key"], name="one_top_up_per_key"),
            models.UniqueConstraint(
                fields=["account"],
                condition=Q(kind="AUTO", state__in=["CREATED", "OPEN"]),
                name="one_open_auto_top_up_per_account",
            ),
            models.CheckConstraint(condition=Q(amount_cents__gt=0), name="a_top_up_adds_something"),
        ]
        indexes = [
            models.Index(fields=["account", "-created_at"], name="top_ups_of_an_account"),
            models.Index(fields=["created_at"], name="top_ups_by_time"),
        ]

    def __str__(self) -> str:
        return f"top-up {self.pk}"


class AutoTopUpQuerySet(models.QuerySet["AutoTopUp"]):
    def enabled(self) -> AutoTopUpQuerySet:
        return self.filter(enabled=True)


class AutoTopUp(models.Model):
    """An account's automatic top-up settings; only `billing.top_ups` writes it."""

    account = models.OneToOneField(Account, on_delete=models.PROTECT, related_name="auto_top_up")
    enabled = models.BooleanField(default=False)
    threshold_cents = models.BigIntegerField(default=0)
    amount_cents = models.BigIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    disabled_reason = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = AutoTopUpQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(threshold_cents__gte=0, amount_cents__gte=0),
                name="auto_top_up_amounts_are_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(enabled=False) | Q(amount_cents__gt=0),
                name="an_enabled_auto_top_up_adds_something",
            ),
        ]

    def __str__(self) -> str:
        return f"auto top-up of account {self.account_id}"
