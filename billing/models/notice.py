"""Billing notices shown to users."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.account import Account


class BillingNotice(models.Model):
    """Posted once per dedupe key; only `billing.notices` writes it."""

    account = models.ForeignKey(
        Account,
        on_delete=models.PROTECT,
        related_name="notices",
        db_index=False,  # the unique index begins with it
    )
    kind = models.CharField(max_length=32)
    dedupe_key = models.CharField(max_length=255)
    data = models.JSONField(default=dict)
    seen_at = models.DateTimeField(null=True, blank=True)
    dismissed_at = models.DateTimeField(null=True, blank=True)
    mailed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "dedupe_key"], name="a_notice_is_posted_once")
        ]
        indexes = [
            models.Index(
                fields=["account", "-id"], name="notices_to_show", condition=Q(dismissed_at__isnull=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} notice {self.pk}"
