"""Compute the cost of a model call in microdollars from tokens, the price catalogue and the provider's own figure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Literal, get_args

CostSource = Literal["FLAT_RATE", "REPORTED", "CATALOGUE", "UNKNOWN"]
COST_SOURCES: tuple[CostSource, ...] = get_args(CostSource)
ReportedCostProblem = Literal["", "invalid", "negative"]

MILLION = 1_000_000
MAX_FIGURE_LENGTH = 64  # characters; longer figures are refused, so that the exact context below suffices
_NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# Wide enough for such a figure times a million, so that only the final rounding rounds.
_EXACT_CONTEXT = Context(prec=MAX_FIGURE_LENGTH + 8)


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Five counts that never overlap; `input` is the uncached part only."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0

    def __bool__(self) -> bool:
        return any((self.input, self.output, self.cache_read, self.cache_write_5m, self.cache_write_1h))


@dataclass(frozen=True, kw_only=True)
class CataloguePrice:
    """One catalogue row. `model` is an exact name or a prefix ending in `*`."""

    id: int
    provider: str
    model: str
    flat_rate: bool
    effective_from: datetime
    input_per_million_microdollars: int = 0
    output_per_million_microdollars: int = 0
    cache_read_per_million_microdollars: int = 0
    cache_write_5m_per_million_microdollars: int = 0
    cache_write_1h_per_million_microdollars: int = 0


@dataclass(frozen=True, kw_only=True)
class CostDecision:
    """A call's cost, its source, and what was wrong with the provider's figure, if anything."""

    cost_microdollars: int
    source: CostSource
    reported_microdollars: int | None
    price_id: int | None
    complaint: ReportedCostProblem


@dataclass(frozen=True, kw_only=True)
class ReportedCost:
    """The provider's figure: an amount, or the reason why it was not usable."""

    amount_microdollars: int | None
    complaint: ReportedCostProblem = ""


def decide_cost(
    *,
    tokens: TokenCounts | None,
    reported: object,
    price: CataloguePrice | None,
    max_call_cost_microdollars: int,
    unknown_cost_microdollars: int,
) -> CostDecision:
    """Decide in this order: flat rate, the provider's figure, the catalogue, the amount for unknown costs.

    `tokens` is None when nobody could count them; then the catalogue cannot be applied.
    """
    figure = parse_reported_cost(reported, max_call_cost_microdollars)
    price_id = None
    source: CostSource = "UNKNOWN"
    cost_microdollars = unknown_cost_microdollars
    if price is not None and price.flat_rate:
        source, cost_microdollars, price_id = "FLAT_RATE", 0, price.id
    elif figure.amount_microdollars is not None:
        source, cost_microdollars = "REPORTED", figure.amount_microdollars
    elif price is not None and tokens is not None:
        source, cost_microdollars, price_id = (
            "CATALOGUE",
            compute_catalogue_microdollars(tokens, price),
            price.id,
        )
    return CostDecision(
        cost_microdollars=cost_microdollars,
        source=source,
        reported_microdollars=figure.amount_microdollars,
        price_id=price_id,
        complaint=figure.complaint,
    )


def parse_reported_cost(value: object, max_call_cost_microdollars: int) -> ReportedCost:
    """Convert a provider's USD figure to microdollars, rounding half up. Implausible figures count as none."""
    if value is None:
        return ReportedCost(amount_microdollars=None)
    dollars = _parse_dollars(value)
    if dollars is None:
        return ReportedCost(amount_microdollars=None, complaint="invalid")
    if dollars < 0:
        return ReportedCost(amount_microdollars=None, complaint="negative")
    microdollars = _EXACT_CONTEXT.multiply(dollars, Decimal(MILLION))
    if microdollars > max_call_cost_microdollars:
        return ReportedCost(amount_microdollars=None, complaint="invalid")
    return ReportedCost(amount_microdollars=int(microdollars.to_integral_value(ROUND_HALF_UP)))


def compute_catalogue_microdollars(tokens: TokenCounts, price: CataloguePrice) -> int:
    """Sum the five products and round up, so that any priced use costs at least 1 microdollar."""
    product = (
        tokens.input * price.input_per_million_microdollars
        + tokens.output * price.output_per_million_microdollars
        + tokens.cache_read * price.cache_read_per_million_microdollars
        + tokens.cache_write_5m * price.cache_write_5m_per_million_microdollars
        + tokens.cache_write_1h * price.cache_write_1h_per_million_microdollars
    )
    return -(-product // MILLION)


def find_price_in_force(
    prices: Iterable[CataloguePrice], provider: str, model: str, at: datetime
) -> CataloguePrice | None:
    """Prefer the exact name, then the longest prefix; among equal names, the row that took effect last."""
    matching = (
        price
        for price in prices
        if price.provider == provider and price.effective_from <= at and _matches_model(price.model, model)
    )
    return max(
        matching,
        key=lambda price: (not price.model.endswith("*"), len(price.model), price.effective_from),
        default=None,
    )


def _matches_model(pattern: str, model: str) -> bool:
    return pattern == model or (pattern.endswith("*") and model.startswith(pattern[:-1]))


def _parse_dollars(value: object) -> Decimal | None:
    """Return the exact decimal value, or None. Booleans are not accepted as numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, int) and abs(value) > MILLION * MILLION:
        return None  # beyond any maximum; Python also refuses to format huge integers
    text = str(value).strip()
    if len(text) > MAX_FIGURE_LENGTH or not _NUMBER_PATTERN.fullmatch(text):
        return None
    return Decimal(text)
