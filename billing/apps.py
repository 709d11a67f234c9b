"""App configuration, and the default rows every installation needs."""

from __future__ import annotations

from datetime import UTC, datetime

from django.apps import AppConfig
from django.apps import apps as present_apps
from django.apps.registry import Apps
from django.db.models.signals import post_migrate

from billing import plans

DEMO_PRICE_SINCE = datetime(2000, 1, 1, tzinfo=UTC)
DEFAULT_SELECTABLE_TIERS = ("FREE", "PRO", "BUSINESS")  # only staff can set ENTERPRISE


class BillingConfig(AppConfig):
    name = "billing"
    verbose_name = "Billing and limits"

    def ready(self) -> None:
        from billing import checks  # noqa: F401 - checks register themselves

        post_migrate.connect(create_default_rows, sender=self)


def create_default_rows(*, using: str, apps: Apps = present_apps, **_signal: object) -> None:
    """Add the policy, one row per tier and a free price for demo models. Existing rows are never changed."""
    try:
        policy = apps.get_model("billing", "LimitPolicy")
        tier_policy = apps.get_model("billing", "TierPolicy")
        model_price = apps.get_model("billing", "ModelPrice")
    except LookupError:
        return  # migrated back to a state before billing
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
