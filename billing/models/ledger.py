"""The credit ledger: append-only entries, and which credits each debit used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

from django.conf import settings
from django.db import models
from django.db.models import F, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Cast, Coalesce, Now

from billing.models.account import Account

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class LeftCents(TypedDict):
        left_cents: int

    OpenLot: TypeAlias = WithAnnotations["LedgerEntry", LeftCents]


class LedgerEntryQuerySet(models.QuerySet["LedgerEntry"]):
    def open_lots(self) -> models.QuerySet[OpenLot]:
        """Choose credits that are not used up, with `left_cents` of each."""
        uses = LedgerAllocation.objects.filter(lot=OuterRef("pk")).order_by().values("lot")
        used_cents = Coalesce(Subquery(uses.values(total=Sum("cents"))), 0)
        left_cents = Cast(F("amount_cents") - used_cents, models.BigIntegerField())
        lots = self.filter(amount_cents__gt=0).annotate(left_cents=left_cents)
        return cast("models.QuerySet[OpenLot]", lots.filter(left_cents__gt=0))


class LedgerEntry(models.Model):
    """One movement of credits. Only `billing.ledger` adds entries, and a trigger refuses changes."""

    class Kind(models.TextChoices):
        GRANT = "GRANT"
        TOP_UP = "TOP_UP"
        SPEND = "SPEND"
        REFUND = "REFUND"
        EXPIRY = "EXPIRY"
        REVERSAL = "REVERSAL"
        REINSTATEMENT = "REINSTATEMENT"

    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="ledger_entries",
        db_index=False,  # the index below begins with it
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    amount_cents = models.BigIntegerField(help_text="Signed. A positive amount is a lot that debits use up.")
    debt_delta_cents = models.BigIntegerField(default=0)
    balance_after_cents = models.BigIntegerField()
    idempotency_key = models.CharField(max_length=255, unique=True)
    reason = models.CharField(max_length=500, blank=True)
    reference = models.CharField(max_length=255, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = LedgerEntryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            models.CheckConstraint(
                condition=Q(balance_after_cents__gte=0), name="no_entry_leaves_a_negative_balance"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["GRANT", "TOP_UP", "REFUND"], amount_cents__gt=0, debt_delta_cents=0)
                | Q(kind__in=["SPEND", "EXPIRY"], amount_cents__lt=0, debt_delta_cents=0)
                | Q(kind="REVERSAL", amount_cents__lte=0)
                | Q(kind="REINSTATEMENT", amount_cents__gte=0, debt_delta_cents__lte=0),
                name="an_entry_has_the_sign_of_its_kind",
            ),
            models.CheckConstraint(
                condition=~Q(amount_cents=0, debt_delta_cents=0), name="an_entry_moves_something"
            ),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(kind__in=["GRANT", "REFUND"]),
                name="only_grants_and_refunds_expire",
            ),
        ]
        indexes = [
            models.Index(fields=["account", "-id"], name="entries_of_an_account"),
            models.Index(
                fields=["account", "expires_at"], name="lots_of_an_account", condition=Q(amount_cents__gt=0)
            ),
            models.Index(
                fields=["expires_at"], name="lots_that_expire", condition=Q(expires_at__isnull=False)
            ),
            models.Index(fields=["reference"], name="entries_by_reference", condition=~Q(reference="")),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class LedgerAllocation(models.Model):
    """The part of a lot that a debit used up. Written with the debit and never changed."""

    entry = models.ForeignKey(
        LedgerEntry,
        on_delete=models.PROTECT,
        related_name="allocations",
        db_index=False,  # the unique index begins with it
    )
    lot = models.ForeignKey(LedgerEntry, on_delete=models.PROTECT, related_name="uses")
    cents = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["entry", "lot"], name="a_debit_uses_a_lot_once"),
            models.CheckConstraint(condition=Q(cents__gt=0), name="an_allocation_takes_something"),
        ]

    def __str__(self) -> str:
        return f"entry {self.entry_id} of lot {self.lot_id}"
