"""Which models were met of late that the price catalogue does not know (B18.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.utils import timezone

from billing import policies, pricing


@dataclass(frozen=True, kw_only=True)
class UsedModel:
    provider: str
    model: str


# From one name to the next by the partial index: it takes as many steps as there are models, not calls.
_USED_MODELS_SQL = """
    WITH RECURSIVE name AS (
        (SELECT provider, model FROM billing_usagerecord WHERE {which} ORDER BY provider, model LIMIT 1)
        UNION ALL
        SELECT following.provider, following.model FROM name CROSS JOIN LATERAL (
            SELECT provider, model FROM billing_usagerecord
            WHERE {which} AND (provider, model) > (name.provider, name.model)
            ORDER BY provider, model LIMIT 1
        ) AS following
    )
    SELECT provider, model FROM name WHERE EXISTS (
        SELECT FROM billing_usagerecord AS record
        WHERE {which} AND record.provider = name.provider AND record.model = name.model
          AND record.occurred_at >= %s
    )
"""


def list_models_of_unknown_cost(since: datetime) -> list[UsedModel]:
    return _list_used_models("cost_source = 'UNKNOWN'", since)


def list_unpriced_models(since: datetime) -> list[UsedModel]:
    """Called of late without a price, and still without one."""
    now, prices = timezone.now(), policies.get_prices()
    return [
        met
        for met in _list_used_models("price_id IS NULL", since)
        if met.model and pricing.find_price_in_force(prices, met.provider, met.model, now) is None
    ]


def _list_used_models(which: str, since: datetime) -> list[UsedModel]:
    with connection.cursor() as cursor:
        cursor.execute(_USED_MODELS_SQL.format(which=which), [since])
        return [UsedModel(provider=provider, model=model) for provider, model in cursor.fetchall()]
