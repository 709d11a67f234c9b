"""List recently used models that have no price in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from billing import policies, pricing
from config.core.db import fetch_all


@dataclass(frozen=True)
class UsedModel:
    provider: str
    model: str


# Skips from one name to the next in the partial index, so that it takes one step per model, not per call.
_USED_MODELS_SQL = """
    WITH RECURSIVE name AS (
        (SELECT provider, model FROM billing_usagerecord WHERE {condition} ORDER BY provider, model LIMIT 1)
        UNION ALL
        SELECT following.provider, following.model FROM name CROSS JOIN LATERAL (
            SELECT provider, model FROM billing_usagerecord
            WHERE {condition} AND (provider, model) > (name.provider, name.model)
            ORDER BY provider, model LIMIT 1
        ) AS following
    )
    SELECT provider, model FROM name WHERE EXISTS (
        SELECT FROM billing_usagerecord AS record
        WHERE {condition} AND record.provider = name.provider AND record.model = name.model
          AND record.occurred_at >= %s
    )
"""


def list_models_of_unknown_cost(since: datetime) -> list[UsedModel]:
    return _list_used_models("cost_source = 'UNKNOWN'", since)


def list_unpriced_models(since: datetime) -> list[UsedModel]:
    """List models that were recently used without a price and still have none."""
    now, prices = timezone.now(), policies.get_prices()
    return [
        used
        for used in _list_used_models("price_id IS NULL", since)
        if used.model and pricing.find_price_in_force(prices, used.provider, used.model, now) is None
    ]


def _list_used_models(condition: str, since: datetime) -> list[UsedModel]:
    return fetch_all(UsedModel, _USED_MODELS_SQL.format(condition=condition), [since])
