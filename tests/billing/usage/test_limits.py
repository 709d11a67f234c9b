"""B6 and B8.1: the limits that bind, the policy behind them, and what a user may see of his use."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import time_machine
from django.db import DatabaseError, connection, transaction
from django.utils import translation

from billing import accounts, metrics, policies
from billing.errors import LimitReached, TierNotAvailable
from billing.models import Account, LimitPolicy, TierPolicy
from billing.selectors import plan_status, usage_status
from billing.usage import limit_checks
from tests.support import factories
from tests.support.usage import NOON, record_past_usage, update_account

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone():
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


def refusal(user):
    try:
        with time_machine.travel(NOON, tick=False):
            limit_checks.check_limits(user.pk)
    except LimitReached as limit:
        return limit.window
    return None


@pytest.mark.parametrize(
    ("fields", "spent", "window"),
    [
        ({"tier": "PRO"}, 3_000_000, None),
        ({"tier": "FREE"}, 999_999, None),
        ({"tier": "FREE"}, 1_000_000, "daily"),
        ({"tier": "ENTERPRISE"}, 50_000_000, None),
        ({"daily_limit_override_microdollars": 0, "weekly_limit_override_microdollars": 0}, 90_000_000, None),
        ({"tier": "BUSINESS", "daily_limit_override_microdollars": 10}, 9, None),
        ({"tier": "BUSINESS", "daily_limit_override_microdollars": 10}, 10, "daily"),
        ({"daily_limit_override_microdollars": 0}, 4_999_999, None),
        ({"daily_limit_override_microdollars": 0}, 5_000_000, "weekly"),
        ({"tier": "FREE"}, 5_000_000, "weekly"),
    ],
)
def test_b6_c1_limits_follow_override_tier_and_base_and_the_week_is_named_first(fields, spent, window):
    ada = factories.ada()
    update_account(ada, **fields)
    record_past_usage(ada, spent)
    assert refusal(ada) == window


def test_b6_4_a_user_without_an_account_is_allowed_and_gets_none_by_asking():
    assert refusal(factories.ada()) is None
    assert not Account.objects.exists()


def test_b6_4_a_new_day_lifts_the_daily_limit():
    ada = factories.ada()
    record_past_usage(ada, 1_000_000, at=NOON - timedelta(days=1))
    assert refusal(ada) is None


def test_b6_6_a_refusal_names_window_and_reset_and_no_amount():
    ada = factories.ada()
    record_past_usage(ada, 1_234_567)
    with time_machine.travel(NOON, tick=False), pytest.raises(LimitReached) as refused:
        limit_checks.check_limits(ada.pk)
    limit = refused.value
    assert limit.resets_at == datetime(2026, 11, 19, tzinfo=UTC)
    assert (limit.code, limit.status, limit.reason) == ("limit_reached", 429, "used")
    assert (
        limit.message
        == "You've reached your daily limit. It resets on Thursday, 19 November 2026, 00:00 UTC."
    )
    assert limit.details() == {
        "window": "daily",
        "resets_at": "2026-11-19T00:00:00Z",
        "reason": "used",
        "reset_cost_cents": 500,
        "can_reset": False,
    }
    assert limit.retry_after_seconds(NOON) == 12 * 3600
    assert limit.retry_after_seconds(limit.resets_at - timedelta(milliseconds=1)) == 1
    assert limit.retry_after_seconds(limit.resets_at + timedelta(hours=1)) == 1


def test_b16_4_a_held_limit_has_a_code_and_a_text_of_its_own():
    held = LimitReached(window="weekly", resets_at=NOON, reason="held")
    assert held.code == "limit_held"
    assert "running chats" in held.message


def test_b6_6_a_refusal_speaks_the_language_of_its_reader(monkeypatch):
    with translation.override("de"):
        assert "Mittwoch, 18" in LimitReached(window="weekly", resets_at=NOON).message
    monkeypatch.setattr(
        translation.trans_real.translation("de"),
        "gettext",
        {"This plan isn't available.": "Unverkäuflich."}.get,
    )
    with translation.override("de"):
        assert TierNotAvailable().message == "Unverkäuflich."


def test_b1_4_a_check_that_cannot_read_allows_and_is_counted(caplog):
    policies.get_rules()
    before = metrics.limit_checks.labels("degraded")._value.get()
    with transaction.atomic():
        savepoint = transaction.savepoint()
        with pytest.raises(DatabaseError):
            connection.cursor().execute("SELECT nothing FROM nowhere")
        limit_checks.check_limits(1)  # the transaction is broken: nothing can be read in it
        transaction.savepoint_rollback(savepoint)
    assert metrics.limit_checks.labels("degraded")._value.get() == before + 1
    assert [entry.levelno for entry in caplog.records if entry.name.startswith("billing.usage")] == [
        logging.WARNING
    ]


def test_b6_3_a_changed_policy_acts_after_the_kept_one_is_forgotten():
    ada = factories.ada()
    record_past_usage(ada, 1_000_000)
    assert refusal(ada) == "daily"
    LimitPolicy.objects.update(daily_base_microdollars=2_000_000)
    policies.clear_policy_cache()
    assert refusal(ada) is None
    TierPolicy.objects.filter(tier="PRO").update(multiplier=1)
    LimitPolicy.objects.update(daily_base_microdollars=1_000_000)
    update_account(ada, tier="PRO")
    policies.clear_policy_cache()
    assert refusal(ada) == "daily"


def test_b6_3_a_kept_policy_is_read_again_within_three_seconds():
    loads, seconds = [], 0.0
    kept = policies.CachedValue(lambda: loads.append(seconds), clock=lambda: seconds)
    for seconds in (0.0, 1.0, 2.9, 3.0, 4.0):  # noqa: B007 - the clock reads it
        kept.get()
    assert loads == [0.0, 3.0]


def test_b6_3_a_missing_policy_is_the_default_one_and_one_error_a_minute(caplog, monkeypatch):
    monkeypatch.setattr(
        policies, "_read_failure_throttle", policies.LogThrottle(policies.LOG_INTERVAL_SECONDS)
    )
    ada = factories.ada()
    record_past_usage(ada, 1_000_000)
    LimitPolicy.objects.all().delete()
    TierPolicy.objects.all().delete()
    for _ in range(3):
        policies.clear_policy_cache()
        assert refusal(ada) == "daily"
    assert [entry.levelno for entry in caplog.records if entry.name == "billing.policies"] == [logging.ERROR]


def test_b8_1_the_public_view_shows_percentages_and_times_alone():
    ada = factories.ada()
    record_past_usage(ada, 250_000)
    with time_machine.travel(NOON, tick=False):
        shown = msgspec.json.decode(msgspec.json.encode(usage_status.get_usage(ada.pk)))
    assert shown == {
        "daily": {"percent_used": 25.0, "resets_at": "2026-11-19T00:00:00Z"},
        "weekly": {"percent_used": 5.0, "resets_at": "2026-11-23T00:00:00Z"},
        "tier": "FREE",
        "reset_cost_cents": 500,
        "resets_left_today": 5,
    }


def test_b8_1_a_window_without_a_limit_is_null():
    ada = factories.ada()
    update_account(ada, daily_limit_override_microdollars=0)
    shown = usage_status.get_usage(ada.pk)
    assert shown.daily is None
    assert shown.weekly is not None


def test_b2_3_a_plan_is_the_tier_with_its_policy():
    ada = factories.ada()
    assert plan_status.get_plan_terms(ada.pk) == plan_status.PlanTerms(
        tier="FREE", model_tiers=(), modes=(), turn_ceiling_microdollars=0, limit_binds_running_turns=True
    )
    TierPolicy.objects.filter(tier="PRO").update(model_tiers=["standard"], modes=["fast"])
    update_account(ada, tier="PRO")
    policies.clear_policy_cache()
    plan = plan_status.get_plan_terms(ada.pk)
    assert (plan.tier, plan.model_tiers, plan.modes) == ("PRO", ("standard",), ("fast",))


def test_b6_1_overrides_are_set_and_cleared():
    ada = factories.ada()
    account = accounts.get_or_create_account(ada.pk)
    accounts.set_limit_overrides(account.pk, daily_limit_microdollars=7, weekly_limit_microdollars=None)
    record_past_usage(ada, 7)
    assert refusal(ada) == "daily"
    accounts.set_limit_overrides(account.pk, daily_limit_microdollars=None, weekly_limit_microdollars=None)
    assert refusal(ada) is None
