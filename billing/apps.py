"""Boots billing, and sees that the rows every installation needs are there."""

from __future__ import annotations

from datetime import UTC, datetime

from django.apps import AppConfig
from django.apps import apps as present_apps
from django.apps.registry import Apps
from django.db.models.signals import post_migrate

from billing import plans

DEMO_PRICE_SINCE = datetime(2000, 1, 1, tzinfo=UTC)
DEFAULT_SELECTABLE_TIERS = ("FREE", "PRO", "BUSINESS")  # ENTERPRISE is set by staff alone (B11.1)


class BillingConfig(AppConfig):
    name = "billing"
    verbose_name = "Billing and limits"

    def ready(self) -> None:
        from billing import checks  # noqa: F401 - checks register themselves

        post_migrate.connect(create_default_rows, sender=self)


def create_default_rows(*, using: str, apps: Apps = present_apps, **_signal: object) -> None:
    """One policy, one row per tier, free demo models (A4.6). What staff have set stays: rows are only added."""
    try:
        policy = apps.get_model("billing", "LimitPolicy")
        tier_policy = apps.get_model("billing", "TierPolicy")
        model_price = apps.get_model("billing", "ModelPrice")
    except LookupError:
        return  # migrated back to before billing
    policy.objects.using(using).bulk_create([policy()], ignore_conflicts=True)
    tier_policy.objects.using(using).bulk_create(
        [
            tier_policy(
                tier=tier,
                multiplier=plans.DEFAULT_MULTIPLIERS[tier],
                selectable=tier in DEFAULT_SELECTABLE_TIERS,
            )
            for tier in plans.TIERS
        ],
        ignore_conflicts=True,
    )
    demo = model_price(provider="scripted", model="*", kind="FLAT_RATE", effective_from=DEMO_PRICE_SINCE)
    model_price.objects.using(using).bulk_create([demo], ignore_conflicts=True)
