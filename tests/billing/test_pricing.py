"""B4: what one call costs, decided purely."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import pricing

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MAX = 100_000_000
INVALID = [
    None,
    "abc",
    float("nan"),
    "NaN",
    float("inf"),
    "-Infinity",
    -1,
    "-0.01",
    True,
    False,
    "",
    "1_000",
    "٣",
]
counts = st.integers(min_value=0, max_value=10**9)
PARTS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


def price(
    model="glow-1", *, provider="acme", flat_rate=False, since=NOON - timedelta(days=1), key=7, **per_million
):
    fields = {f"{part}_per_million_microdollars": amount for part, amount in per_million.items()}
    return pricing.CataloguePrice(
        id=key, provider=provider, model=model, flat_rate=flat_rate, effective_from=since, **fields
    )


SONNET = price(input=3_000_000, output=15_000_000, cache_read=300_000)
CALL = pricing.TokenCounts(input=1_000, output=500, cache_read=2_000)


def decide(tokens=CALL, reported=None, row=SONNET, unknown=10_000):
    return pricing.decide_cost(
        tokens=tokens,
        reported=reported,
        price=row,
        max_call_cost_microdollars=MAX,
        unknown_cost_microdollars=unknown,
    )


def test_b4_c1_a_call_without_reported_cost_is_priced_by_the_catalogue():
    decision = decide()
    assert (decision.cost_microdollars, decision.source, decision.price_id) == (11_100, "CATALOGUE", 7)


def test_b4_c2_a_reported_cost_wins_over_the_catalogue():
    decision = decide(reported="0.0123")
    assert (decision.cost_microdollars, decision.source, decision.price_id) == (12_300, "REPORTED", None)


def test_b4_c2_a_flat_rate_model_costs_nothing_and_keeps_what_was_reported():
    decision = decide(reported="0.0123", row=price(flat_rate=True))
    assert (decision.cost_microdollars, decision.source) == (0, "FLAT_RATE")
    assert decision.reported_microdollars == 12_300


@pytest.mark.parametrize("reported", INVALID, ids=repr)
def test_b4_c3_an_invalid_figure_falls_through_to_the_catalogue(reported):
    decision = decide(reported=reported)
    assert (decision.cost_microdollars, decision.source) == (11_100, "CATALOGUE")
    assert decision.reported_microdollars is None
    assert bool(decision.complaint) == (reported is not None)


@pytest.mark.parametrize("reported", INVALID, ids=repr)
def test_b4_c3_without_a_price_the_unknown_cost_policy_decides(reported):
    assert decide(reported=reported, row=None).cost_microdollars == 10_000
    assert decide(reported=reported, row=None, unknown=0).cost_microdollars == 0
    assert decide(reported=reported, row=None).source == "UNKNOWN"


def test_b4_1_a_call_nobody_could_count_is_unknown_even_with_a_price():
    assert decide(tokens=None).source == "UNKNOWN"


@pytest.mark.parametrize(
    ("usd", "microdollars"),
    [
        ("0", 0), ("-0", 0), (0, 0), ("0.0123", 12_300), (0.0123, 12_300), (Decimal("0.0123"), 12_300),
        ("0.0000005", 1), ("0.0000004", 0), ("0.00000049999999999999999999999999999999", 0), ("1.23e-2", 12_300),
        ("1e-9999", 0), (".5", 500_000), ("2.", 2_000_000), (" 1 ", 1_000_000), ("+1", 1_000_000), ("100", MAX), ("0." + "0" * 62, 0),
    ],
)  # fmt: skip
def test_b4_4_a_reported_figure_is_read_exactly_and_rounded_half_up(usd, microdollars):
    assert pricing.parse_reported_cost(usd, MAX) == pricing.ReportedCost(amount_microdollars=microdollars)


@pytest.mark.parametrize(
    "usd", ["100.0000001", "1e9999", 10**5000, "9" * 100, "0." + "0" * 63], ids=lambda usd: str(type(usd))
)
def test_b4_3_a_figure_above_the_maximum_is_not_believed(usd):
    assert pricing.parse_reported_cost(usd, MAX) == pricing.ReportedCost(
        amount_microdollars=None, complaint="invalid"
    )


def test_b4_3_a_negative_figure_is_told_apart_from_other_nonsense():
    assert pricing.parse_reported_cost("-0.5", MAX).complaint == "negative"
    assert pricing.parse_reported_cost("-inf", MAX).complaint == "invalid"


@given(st.decimals(min_value=0, max_value=100, places=9))
def test_b4_4_reading_a_figure_is_within_half_a_microdollar(usd):
    amount = pricing.parse_reported_cost(str(usd), MAX).amount_microdollars
    assert amount is not None
    assert -Decimal("0.5") < amount - usd * 1_000_000 <= Decimal("0.5")


@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none())
def test_b4_3_whatever_a_provider_reports_is_an_amount_in_range_or_nothing(value):
    amount = pricing.parse_reported_cost(value, MAX).amount_microdollars
    assert amount is None or 0 <= amount <= MAX


@given(
    st.lists(counts, min_size=5, max_size=5),
    st.lists(counts, min_size=5, max_size=5),
    st.integers(0, 4),
    counts,
)
def test_b4_c4_the_catalogue_cost_is_whole_monotone_and_zero_only_for_nothing(tokens, prices, grown, more):
    row = price(**dict(zip(PARTS, prices, strict=True)))
    cost = pricing.compute_catalogue_microdollars(
        pricing.TokenCounts(**dict(zip(PARTS, tokens, strict=True))), row
    )
    tokens_grown = [count + more * (place == grown) for place, count in enumerate(tokens)]
    cost_grown = pricing.compute_catalogue_microdollars(
        pricing.TokenCounts(**dict(zip(PARTS, tokens_grown, strict=True))), row
    )
    assert type(cost) is int
    assert 0 <= cost <= cost_grown
    assert (cost == 0) == all(count * unit == 0 for count, unit in zip(tokens, prices, strict=True))


def test_b4_4_the_sum_is_divided_once_and_rounded_up():
    row = price(input=1, output=1)
    assert pricing.compute_catalogue_microdollars(pricing.TokenCounts(input=1, output=1), row) == 1
    assert (
        pricing.compute_catalogue_microdollars(pricing.TokenCounts(input=500_000, output=500_001), row) == 2
    )


def test_b4_4_each_of_the_five_counts_has_its_own_price():
    row = price(input=2, output=3, cache_read=5, cache_write_5m=7, cache_write_1h=11)
    for part, unit in zip(PARTS, (2, 3, 5, 7, 11), strict=True):
        tokens = pricing.TokenCounts(**{part: 13_000_000})
        assert bool(tokens)
        assert pricing.compute_catalogue_microdollars(tokens, row) == 13 * unit
    assert not pricing.TokenCounts()
    assert pricing.compute_catalogue_microdollars(pricing.TokenCounts(), row) == 0


def test_b4_3_the_exact_name_wins_then_the_longest_prefix():
    rows = [price("*", key=1), price("glow*", key=2), price("glow-1*", key=3), price("glow-1", key=4)]

    def found(model):
        return pricing.find_price_in_force(rows, "acme", model, NOON)

    assert [found(model).id for model in ("glow-1", "glow-1-mini", "glow-2", "other")] == [4, 3, 2, 1]
    assert pricing.find_price_in_force(rows, "elsewhere", "glow-1", NOON) is None


def test_b4_3_the_price_in_force_at_the_call_is_the_last_that_took_effect():
    rows = [price(since=NOON - timedelta(days=days), key=days) for days in (1, 5, 9)]
    rows.append(price(since=NOON + timedelta(seconds=1), key=99))

    def found(at):
        return pricing.find_price_in_force(rows, "acme", "glow-1", at)

    assert found(NOON).id == 1
    assert found(NOON - timedelta(days=1)).id == 1
    assert found(NOON - timedelta(days=1, seconds=1)).id == 5
    assert found(NOON - timedelta(days=10)) is None


def test_b4_3_a_future_exact_row_does_not_hide_the_prefix_in_force():
    rows = [price("glow*", key=1), price("glow-1", key=2, since=NOON + timedelta(days=1))]
    assert pricing.find_price_in_force(rows, "acme", "glow-1", NOON) == rows[0]
