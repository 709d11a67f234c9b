"""B5.1, B6.1, B8.1: windows, effective limits and percentages, and B1.2: money is integers."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import typing
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from django.apps import apps
from django.db import OperationalError, models
from hypothesis import given
from hypothesis import strategies as st

import billing
from billing import plans, policies
from billing.models import LimitPolicy

MONEY_WORDS = re.compile(
    r"cost|price|limit_|base|balance|debt|amount|used|override|hold|ceiling|per_million|monthly"
)
UNITS = ("_cents", "_microdollars")
instants = st.datetimes(
    min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.timezones()
)


def dataclasses_of_billing():
    modules = [
        importlib.import_module(f"billing.{found.name}")
        for found in pkgutil.iter_modules(billing.__path__)
        if not found.ispkg
    ]
    for module in modules:
        for value in vars(module).values():
            if dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                yield value, typing.get_type_hints(value)


@pytest.mark.parametrize(
    "model", list(apps.get_app_config("billing").get_models()), ids=lambda model: model.__name__
)
def test_b1_c1_every_money_column_is_a_64_bit_integer_that_names_its_unit(model):
    for field in model._meta.concrete_fields:
        assert not isinstance(field, models.FloatField | models.DecimalField), field
        if field.name.endswith(UNITS):
            assert type(field) is models.BigIntegerField, field
        elif MONEY_WORDS.search(field.name) and isinstance(field, models.IntegerField):
            raise AssertionError(f"{field} carries money without its unit")


def test_b1_c1_every_money_field_of_a_value_is_an_integer_that_names_its_unit():
    seen = list(dataclasses_of_billing())
    assert len(seen) >= 12
    for owner, hints in seen:
        for name, hint in hints.items():
            parts = set(typing.get_args(hint)) or {hint}
            assert Decimal not in parts, (owner, name)
            assert float not in parts or name == "percent_used", (owner, name)
            if name.endswith(UNITS):
                assert parts <= {int, type(None)}, (owner, name)
            elif int in parts and MONEY_WORDS.search(name) and not name.endswith("_id"):
                raise AssertionError(f"{owner.__name__}.{name} carries money without its unit")


def test_b5_c5_a_midnight_parts_days_and_a_sunday_midnight_weeks():
    sunday = datetime(2026, 11, 15, 23, 59, 59, 900_000, tzinfo=UTC)
    monday = datetime(2026, 11, 16, tzinfo=UTC)
    assert plans.get_day_window(sunday).starts_on == date(2026, 11, 15)
    assert plans.get_day_window(monday).starts_on == date(2026, 11, 16)
    assert plans.get_week_window(sunday).starts_on == date(2026, 11, 9)
    assert plans.get_week_window(monday).starts_on == date(2026, 11, 16)
    assert plans.get_day_window(sunday).resets_at == plans.get_week_window(sunday).resets_at == monday


def test_b5_c5_new_years_day_2027_lies_in_the_last_week_of_2026():
    friday, monday = datetime(2027, 1, 1, tzinfo=UTC), datetime(2026, 12, 28, tzinfo=UTC)
    assert plans.get_week_window(friday) == plans.get_week_window(monday)
    assert plans.get_week_window(friday).label == "2026-W53"
    assert plans.get_day_window(friday).label == "2027-01-01"


def test_b5_1_windows_are_utc_wherever_the_instant_was_written_down():
    in_tokyo = datetime(2026, 11, 16, 8, 59, tzinfo=timezone(timedelta(hours=9)))
    assert plans.get_day_window(in_tokyo).starts_on == date(2026, 11, 15)


@given(instants)
def test_b20_5_every_instant_lies_in_exactly_one_day_and_one_week_that_reset_later(instant):
    for window, length in ((plans.get_day_window(instant), 1), (plans.get_week_window(instant), 7)):
        start = datetime.combine(window.starts_on, datetime.min.time(), tzinfo=UTC)
        assert start <= instant < window.resets_at == start + timedelta(days=length)
    assert plans.get_week_window(instant).starts_on.weekday() == 0


def test_b6_1_an_override_is_absolute_and_a_base_is_multiplied():
    assert plans.compute_effective_limit_microdollars(1_000_000, 5, None) == 5_000_000
    assert plans.compute_effective_limit_microdollars(1_000_000, 20, 10) == 10
    assert plans.compute_effective_limit_microdollars(1_000_000, 20, 0) == plans.UNLIMITED
    assert plans.compute_effective_limit_microdollars(0, 60, None) == plans.UNLIMITED


@given(st.integers(0, 10**15), st.integers(1, 1000), st.none() | st.integers(0, 10**15))
def test_b20_5_the_effective_limit_is_the_override_or_a_multiple_of_the_base(base, multiplier, override):
    limit = plans.compute_effective_limit_microdollars(base, multiplier, override)
    assert limit == (base * multiplier if override is None else override)


@pytest.mark.parametrize(
    ("used", "percent"), [(499, 0.0), (500, 0.1), (999_999, 99.9), (1_000_000, 100.0), (3_000_000, 100.0)]
)
def test_b8_c1_percentages_are_rounded_half_up_and_full_only_when_full(used, percent):
    assert plans.compute_percent_used(used, 1_000_000) == percent


def test_b8_c1_without_a_limit_there_is_no_percentage():
    assert plans.compute_percent_used(3_000_000, plans.UNLIMITED) is None


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**12))
def test_b20_5_the_percentage_is_in_range_monotone_and_full_exactly_when_exhausted(used, more, limit):
    percent, later = plans.compute_percent_used(used, limit), plans.compute_percent_used(used + more, limit)
    assert percent is not None
    assert later is not None
    assert 0.0 <= percent <= later <= 100.0
    assert (percent == 100.0) == (used >= limit) == plans.is_exhausted(used, limit)


def test_a_database_that_is_away_for_a_moment_changes_no_policy(db, monkeypatch):
    """B6.3: what was read stands; what was never read is the default, never no limit"""
    LimitPolicy.objects.update(daily_base_microdollars=0)
    policies.clear_policy_cache()
    assert policies.get_rules().policy.daily_base_microdollars == 0

    def away(**fields):
        raise OperationalError

    with monkeypatch.context() as outage:
        outage.setattr(LimitPolicy.objects, "get", away)
        assert policies._cached_rules.refresh().policy.daily_base_microdollars == 0
        policies.clear_policy_cache()
        assert policies.get_rules().policy == plans.PolicyValues()
    assert policies.get_rules().policy.daily_base_microdollars == 0  # as soon as it is back
    policies.clear_policy_cache()
