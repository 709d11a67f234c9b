"""B5: calls are recorded once, in the windows of their end; B3: what the database itself refuses."""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import accounts, metrics, policies, pricing
from billing.apps import create_default_rows
from billing.models import Account, LimitPolicy, ModelPrice, TierPolicy, UsageRecord, UsageWindow
from billing.usage import usage_records
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.usage import NOON, make_usage_call, read_windows, record_past_usage, update_account

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone():
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


def newcomer():
    """Somebody new, without the slow hashing of a password."""
    return User.objects.create(username=f"user-{uuid.uuid4()}")


def add_price(**fields):
    ModelPrice.objects.create(
        provider="acme",
        model="glow*",
        effective_from=NOON - timedelta(days=1),
        input_per_million_microdollars=3_000_000,
        output_per_million_microdollars=15_000_000,
        cache_read_per_million_microdollars=300_000,
        **fields,
    )
    policies.clear_policy_cache()


def test_b5_2_a_call_is_recorded_and_counted_in_its_day_and_week():
    ada = factories.ada()
    made = make_usage_call(ada, session_ref="s", turn_ref="t", purpose="title", estimated=True, aborted=True)
    assert usage_records.record_usage(made) == usage_records.RecordedUsage(
        cost_microdollars=1_000, source="REPORTED"
    )
    row = UsageRecord.objects.get(pk=made.call_id)
    assert (row.account, row.occurred_at, row.provider, row.model) == (
        ada.billing_account,
        NOON,
        "acme",
        "glow-1",
    )
    assert (row.purpose, row.session_ref, row.turn_ref, row.estimated, row.aborted) == (
        "title",
        "s",
        "t",
        True,
        True,
    )
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens) == (1_000, 500, 2_000)
    assert (row.cost_microdollars, row.reported_microdollars, row.cost_source) == (1_000, 1_000, "REPORTED")
    assert read_windows(ada, "DAY") == {"2026-11-18": (1_000, 1)}
    assert read_windows(ada, "WEEK") == {"2026-11-16": (1_000, 1)}


def test_b5_2_a_repeated_call_id_changes_nothing_and_is_answered_as_the_first_time():
    ada = factories.ada()
    first = make_usage_call(ada)
    usage_records.record_usage(first)
    again = make_usage_call(ada, call_id=first.call_id, reported="0.5")
    assert usage_records.record_usage(again) == usage_records.RecordedUsage(
        cost_microdollars=1_000, source="REPORTED"
    )
    assert UsageRecord.objects.count() == 1
    assert read_windows(ada, "DAY") == {"2026-11-18": (1_000, 1)}


def test_b19_6_recording_is_one_statement_once_the_account_exists(django_assert_num_queries):
    ada = factories.ada()
    record_past_usage(ada, 1)
    with django_assert_num_queries(1):
        record_past_usage(ada, 1)


def test_b5_2_a_call_that_costs_nothing_touches_no_window():
    ada = factories.ada()
    record_past_usage(ada, 0)
    assert UsageRecord.objects.count() == 1
    assert not UsageWindow.objects.exists()


def test_b4_6_our_own_calls_have_no_account_and_touch_no_window():
    made = make_usage_call(None)
    assert usage_records.record_usage(made).cost_microdollars == 1_000
    assert UsageRecord.objects.get(pk=made.call_id).account is None
    assert not UsageWindow.objects.exists()
    assert not Account.objects.exists()


def test_b4_1_a_call_for_which_zero_tokens_and_no_cost_were_reported_leaves_no_record():
    nothing = make_usage_call(factories.ada(), tokens=pricing.TokenCounts(), reported=None)
    assert usage_records.record_usage(nothing) == usage_records.RecordedUsage(cost_microdollars=0, source="")
    assert not UsageRecord.objects.exists()


def test_a4_6_the_scripted_demo_costs_nothing():
    demo = make_usage_call(factories.ada(), provider="scripted", model="demo", reported=None)
    assert usage_records.record_usage(demo) == usage_records.RecordedUsage(
        cost_microdollars=0, source="FLAT_RATE"
    )


def test_b5_2_a_database_error_propagates_and_leaves_nothing_behind():
    ada = factories.ada()
    with pytest.raises(DatabaseError), transaction.atomic():
        usage_records.record_usage(make_usage_call(ada, tokens=pricing.TokenCounts(input=-1)))
    assert not UsageRecord.objects.exists()
    assert not UsageWindow.objects.exists()


@pytest.mark.parametrize("reported", [None, "abc", "NaN", "inf", "-1", "True"])
@pytest.mark.parametrize(("rule", "cost"), [("DEFAULT", 10_000), ("ZERO", 0)])
def test_b4_c3_an_unknown_cost_counts_by_policy_with_one_error_in_the_log(reported, rule, cost, caplog):
    """A0.4, B4.c3: an unknown cost is marked, never taken for nothing"""
    LimitPolicy.objects.update(unknown_cost=rule)
    before = metrics.usage_records.labels("UNKNOWN")._value.get()
    recorded = usage_records.record_usage(make_usage_call(factories.ada(), reported=reported))
    assert recorded == usage_records.RecordedUsage(cost_microdollars=cost, source="UNKNOWN")
    assert [entry.levelno for entry in caplog.records if entry.name.startswith("billing.usage")] == [
        logging.ERROR
    ]
    assert metrics.usage_records.labels("UNKNOWN")._value.get() == before + 1


@pytest.mark.parametrize(
    ("reported", "levels"),
    [(None, []), ("0.0123", []), ("abc", [logging.ERROR]), ("-1", [logging.WARNING])],
)
def test_b4_c3_an_invalid_figure_is_logged_and_priced_by_the_catalogue(reported, levels, caplog):
    add_price()
    made = make_usage_call(factories.ada(), reported=reported)
    source = "REPORTED" if reported == "0.0123" else "CATALOGUE"
    assert usage_records.record_usage(made).source == source
    assert usage_records.record_usage(made).source == source  # the repeat is silent
    assert [entry.levelno for entry in caplog.records if entry.name.startswith("billing.usage")] == levels
    assert (UsageRecord.objects.get(pk=made.call_id).price is not None) == (source == "CATALOGUE")


def test_b5_c5_calls_around_sunday_midnight_fall_in_different_days_and_weeks():
    ada = factories.ada()
    midnight = datetime(2026, 11, 16, tzinfo=UTC)
    record_past_usage(ada, 1, at=midnight - timedelta(milliseconds=100))
    record_past_usage(ada, 2, at=midnight)
    assert read_windows(ada, "DAY") == {"2026-11-15": (1, 1), "2026-11-16": (2, 1)}
    assert read_windows(ada, "WEEK") == {"2026-11-09": (1, 1), "2026-11-16": (2, 1)}


def test_b5_c5_new_year_shares_the_last_week_of_the_old_iso_year():
    ada = factories.ada()
    record_past_usage(ada, 1, at=datetime(2027, 1, 1, tzinfo=UTC))
    record_past_usage(ada, 2, at=datetime(2026, 12, 28, tzinfo=UTC))
    assert read_windows(ada, "WEEK") == {"2026-12-28": (3, 2)}


moments = st.datetimes(
    min_value=datetime(2026, 12, 20), max_value=datetime(2027, 1, 12), timezones=st.just(UTC)
)
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3_000_000), moments), max_size=12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_b5_7_use_of_every_window_is_the_sum_of_its_records(calls):
    user = newcomer()
    ids = [uuid.uuid4() for _ in range(6)]  # few ids: repeats happen
    for which, microdollars, at in calls:
        usage_records.record_usage(
            make_usage_call(user, call_id=ids[which], at=at, reported=f"{microdollars / 1_000_000:.6f}")
        )
    records = UsageRecord.objects.filter(account__user=user)
    for window in UsageWindow.objects.filter(account__user=user):
        days = 1 if window.kind == "DAY" else 7
        start = datetime.combine(window.starts_on, datetime.min.time(), tzinfo=UTC)
        inside = records.filter(occurred_at__gte=start, occurred_at__lt=start + timedelta(days=days))
        assert window.used_microdollars == inside.aggregate(total=Sum("cost_microdollars"))["total"]
        assert window.version == inside.filter(cost_microdollars__gt=0).count()
    total = sum(records.values_list("cost_microdollars", flat=True))
    for kind in ("DAY", "WEEK"):
        assert sum(amount for amount, _ in read_windows(user, kind).values()) == total


def together(*acts):
    """All acts in threads of their own, let go by one barrier, and their answers."""
    barrier = threading.Barrier(len(acts))

    def run(act):
        try:
            barrier.wait(10)
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


@rounds(10, 50)
@pytest.mark.django_db(transaction=True)
def test_b5_c3_one_call_id_recorded_twice_at_the_same_time_is_one_record_and_one_addition(rounds):
    ada = factories.ada()
    for done in range(1, rounds + 1):
        made = make_usage_call(ada)
        answers = together(*[lambda made=made: usage_records.record_usage(made)] * 2)
        assert answers == [usage_records.RecordedUsage(cost_microdollars=1_000, source="REPORTED")] * 2
        assert UsageRecord.objects.count() == done
        assert read_windows(ada, "DAY") == {"2026-11-18": (1_000 * done, done)}


@pytest.mark.django_db(transaction=True)
def test_b5_2_many_recordings_at_once_lose_nothing_and_never_deadlock():
    ada = factories.ada()
    tuesday_and_wednesday = [NOON - timedelta(days=1), NOON] * 4

    def record_ten(at):
        for _ in range(10):
            record_past_usage(ada, 1_000, at=at)

    together(*[lambda at=at: record_ten(at) for at in tuesday_and_wednesday])
    assert read_windows(ada, "DAY") == {"2026-11-17": (40_000, 40), "2026-11-18": (40_000, 40)}
    assert read_windows(ada, "WEEK") == {"2026-11-16": (80_000, 80)}


@rounds(10, 50)
@pytest.mark.django_db(transaction=True)
def test_b2_c2_two_first_requests_of_a_new_user_make_one_account_and_both_succeed(rounds):
    for _ in range(rounds):
        user = newcomer()
        answers = together(*[lambda user=user: accounts.get_or_create_account(user.pk).pk] * 2)
        assert answers == [Account.objects.get(user=user).pk] * 2


@pytest.mark.django_db(transaction=True)
def test_b2_5_two_first_calls_of_a_new_user_are_both_counted():
    for _ in range(10):
        user = newcomer()
        together(*[lambda user=user: record_past_usage(user, 5)] * 2)
        assert read_windows(user, "DAY") == {"2026-11-18": (10, 2)}


def test_b2_5_a_user_with_an_account_cannot_be_deleted_even_by_sql():
    ada = factories.ada()
    accounts.get_or_create_account(ada.pk)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM auth_user WHERE id = %s", [ada.pk])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_account SET credit_balance_cents = credit_balance_cents - 101",
        "UPDATE billing_account SET debt_cents = -1",
        "UPDATE billing_account SET daily_limit_override_microdollars = -1",
        "UPDATE billing_account SET tier = 'GOLD'",
        "UPDATE billing_usagewindow SET used_microdollars = -1",
        "UPDATE billing_usagerecord SET cost_microdollars = -1",
        "UPDATE billing_usagerecord SET output_tokens = -1",
        "UPDATE billing_modelprice SET output_per_million_microdollars = -1",
        "UPDATE billing_modelprice SET output_per_million_microdollars = 1 WHERE model = 'glow*'",
        "UPDATE billing_modelprice SET model = 'a*b' WHERE provider = 'scripted'",
        "UPDATE billing_limitpolicy SET id = 2",
        "UPDATE billing_limitpolicy SET grace_days = -1",
        "UPDATE billing_limitpolicy SET daily_base_microdollars = -1",
        "UPDATE billing_tierpolicy SET multiplier = 0",
        "UPDATE billing_tierpolicy SET stripe_price_id = 'price_1' WHERE tier = 'FREE'",
        "INSERT INTO billing_account (user_id) SELECT user_id FROM billing_account",
    ],
)
def test_b3_the_database_itself_refuses(statement):
    add_price()
    ada = factories.ada()
    update_account(ada, credit_balance_cents=100)
    usage_records.record_usage(make_usage_call(ada, reported=None))
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_b3_a_price_not_in_use_may_be_edited():
    add_price()
    assert ModelPrice.objects.filter(model="glow*").update(output_per_million_microdollars=1) == 1


def test_b6_2_default_rows_are_added_and_never_overwritten():
    LimitPolicy.objects.update(daily_base_microdollars=5)
    TierPolicy.objects.filter(tier="PRO").update(multiplier=9)
    TierPolicy.objects.filter(tier="FREE").delete()
    create_default_rows(using="default")
    assert LimitPolicy.objects.get().daily_base_microdollars == 5
    multipliers = dict(TierPolicy.objects.values_list("tier", "multiplier"))
    assert multipliers == {"FREE": 1, "PRO": 9, "BUSINESS": 20, "ENTERPRISE": 60}
    assert ModelPrice.objects.filter(provider="scripted").count() == 1
