"""Tokens and a provider's own figure to microdollars: pure, exact, and decided in one order (B4.2-B4.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Literal, get_args

Source = Literal["FLAT_RATE", "REPORTED", "CATALOGUE", "UNKNOWN"]
SOURCES: tuple[Source, ...] = get_args(Source)
Complaint = Literal["", "invalid", "negative"]

MILLION = 1_000_000
LONGEST_FIGURE = 64  # characters; no provider writes a price longer, and exactness needs a bound
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# Wide enough for such a figure times a million: nothing is rounded before the one rounding that is meant.
_EXACT = Context(prec=LONGEST_FIGURE + 8)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Five counts that never overlap: `input` is the uncached part alone (B4.2)."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0

    def __bool__(self) -> bool:
        return any((self.input, self.output, self.cache_read, self.cache_write_5m, self.cache_write_1h))


@dataclass(frozen=True, kw_only=True)
class Price:
    """One row of the catalogue; `model` is exact or a prefix that ends in `*`."""

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
class Decision:
    """What a call costs, which step said so, and what was wrong with the provider's figure."""

    cost_microdollars: int
    source: Source
    reported_microdollars: int | None
    price_id: int | None
    complaint: Complaint


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The provider's figure as read: an amount, or the reason why there is none."""

    amount_microdollars: int | None
    complaint: Complaint = ""


def decide(
    *,
    tokens: Tokens | None,
    reported: object,
    price: Price | None,
    max_call_cost_microdollars: int,
    unknown_cost_microdollars: int,
) -> Decision:
    """The order of B4.3. `tokens` is None when nobody could count them: then no catalogue helps."""
    figure = read_reported(reported, max_call_cost_microdollars)
    price_id = None
    source: Source = "UNKNOWN"
    cost_microdollars = unknown_cost_microdollars
    if price is not None and price.flat_rate:
        source, cost_microdollars, price_id = "FLAT_RATE", 0, price.id
    elif figure.amount_microdollars is not None:
        source, cost_microdollars = "REPORTED", figure.amount_microdollars
    elif price is not None and tokens is not None:
        source, cost_microdollars, price_id = "CATALOGUE", catalogue_microdollars(tokens, price), price.id
    return Decision(
        cost_microdollars=cost_microdollars,
        source=source,
        reported_microdollars=figure.amount_microdollars,
        price_id=price_id,
        complaint=figure.complaint,
    )


def read_reported(value: object, max_call_cost_microdollars: int) -> Reported:
    """USD as a provider wrote it, to microdollars, half up; anything odd is no figure (B4.3 step 2)."""
    if value is None:
        return Reported(amount_microdollars=None)
    dollars = _dollars(value)
    if dollars is None:
        return Reported(amount_microdollars=None, complaint="invalid")
    if dollars < 0:
        return Reported(amount_microdollars=None, complaint="negative")
    microdollars = _EXACT.multiply(dollars, Decimal(MILLION))
    if microdollars > max_call_cost_microdollars:
        return Reported(amount_microdollars=None, complaint="invalid")
    return Reported(amount_microdollars=int(microdollars.to_integral_value(ROUND_HALF_UP)))


def catalogue_microdollars(tokens: Tokens, price: Price) -> int:
    """Five products, one division, rounded up: a call that used anything priced costs at least 1 (B4.4)."""
    product = (
        tokens.input * price.input_per_million_microdollars
        + tokens.output * price.output_per_million_microdollars
        + tokens.cache_read * price.cache_read_per_million_microdollars
        + tokens.cache_write_5m * price.cache_write_5m_per_million_microdollars
        + tokens.cache_write_1h * price.cache_write_1h_per_million_microdollars
    )
    return -(-product // MILLION)


def price_in_force(prices: Iterable[Price], provider: str, model: str, at: datetime) -> Price | None:
    """Exact name first, else the longest prefix; of one name the row that took effect last."""
    fitting = (
        price
        for price in prices
        if price.provider == provider and price.effective_from <= at and _matches(price.model, model)
    )
    return max(
        fitting,
        key=lambda price: (not price.model.endswith("*"), len(price.model), price.effective_from),
        default=None,
    )


def _matches(pattern: str, model: str) -> bool:
    return pattern == model or (pattern.endswith("*") and model.startswith(pattern[:-1]))


def _dollars(value: object) -> Decimal | None:
    """The exact decimal of the textual value. Booleans are numbers to Python, not to us."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, int) and abs(value) > MILLION * MILLION:
        return None  # beyond any maximum, and Python refuses to write endless numbers out
    text = str(value).strip()
    if len(text) > LONGEST_FIGURE or not _NUMBER.fullmatch(text):
        return None
    return Decimal(text)
