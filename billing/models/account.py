"""The account: a user's tier, limit overrides, balance and Stripe customer."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing import plans

TIER_CHOICES = [(tier, tier.title()) for tier in plans.TIERS]


class Account(models.Model):
    """One user's billing state, created only by `billing.accounts`. It protects its user from deletion."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="billing_account"
    )
    tier = models.CharField(max_length=16, choices=TIER_CHOICES, default="FREE", db_default="FREE")
    granted_tier = models.CharField(  # noqa: DJ001 - no grant is not a tier
        max_length=16, choices=TIER_CHOICES, null=True, blank=True
    )
    stripe_customer_id = models.CharField(max_length=255, null=True, blank=True, unique=True)
    daily_limit_override_microdollars = models.BigIntegerField(
        null=True, blank=True, help_text="Absolute, not multiplied. 0 = unlimited, empty = by tier."
    )
    weekly_limit_override_microdollars = models.BigIntegerField(
        null=True, blank=True, help_text="Absolute, not multiplied. 0 = unlimited, empty = by tier."
    )
    credit_balance_cents = models.BigIntegerField(default=0, db_default=0, editable=False)
    debt_cents = models.BigIntegerField(default=0, db_default=0, editable=False)
    trial_used_at = models.DateTimeField(null=True, blank=True)
    change_token = models.UUIDField(
        null=True, blank=True, help_text="Owner token of the lock on plan changes."
    )
    change_lease_until = models.DateTimeField(null=True, blank=True)
    # A database trigger raises the version whenever tier or overrides change; copies in Redis compare it.
    entitlement_version = models.BigIntegerField(default=0, db_default=0, editable=False)
    entitlement_changed_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(tier__in=plans.TIERS), name="an_account_has_a_known_tier"),
            models.CheckConstraint(
                condition=Q(granted_tier__isnull=True) | Q(granted_tier__in=plans.TIERS),
                name="a_granted_tier_is_known",
            ),
            models.CheckConstraint(
                condition=Q(daily_limit_override_microdollars__gte=0),
                name="a_daily_override_is_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(weekly_limit_override_microdollars__gte=0),
                name="a_weekly_override_is_never_negative",
            ),
            models.CheckConstraint(
                condition=Q(credit_balance_cents__gte=0), name="a_balance_is_never_negative"
            ),
            models.CheckConstraint(condition=Q(debt_cents__gte=0), name="a_debt_is_never_negative"),
            models.CheckConstraint(
                condition=Q(change_token__isnull=True, change_lease_until__isnull=True)
                | Q(change_token__isnull=False, change_lease_until__isnull=False),
                name="a_change_lease_has_an_owner_and_an_end",
            ),
        ]
        indexes = [
            models.Index(
                fields=["entitlement_changed_at"],
                name="entitlements_by_change",
                condition=Q(entitlement_changed_at__isnull=False),
            ),
            models.Index(
                fields=["user"],
                name="accounts_with_overrides",
                condition=Q(daily_limit_override_microdollars__isnull=False)
                | Q(weekly_limit_override_microdollars__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"account {self.pk}"


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
