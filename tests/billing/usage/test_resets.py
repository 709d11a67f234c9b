"""B8: a user's view of their usage, and buying a reset of the day without ever paying for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.db import connections

from billing import accounts, ledger, plans, policies, redis_counters, signals
from billing.errors import BillingRequestRefused, LimitReached, UsageResetUnavailable
from billing.models import LedgerEntry, LimitPolicy, UsageReset, UsageWindow
from billing.selectors import credit_statements, usage_status
from billing.usage import limit_checks, resets, windows
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.race_repeats import rounds
from tests.support.redis_outages import make_connection_pool
from tests.support.signal_receivers import receiving_only
from tests.support.usage import read_cached_usage, record_usage

pytestmark = pytest.mark.django_db(transaction=True)
lifted: list[int] = []


@pytest.fixture(autouse=True)
def _hooked():
    policies.clear_policy_cache()
    lifted.clear()
    with receiving_only(signals.limit_lifted, note_lifted):
        yield
    policies.clear_policy_cache()


def note_lifted(user_id, **_signal):
    lifted.append(user_id)


@pytest.fixture
def ada():
    """Has used up her day, and has credit."""
    user = factories.user("ada")
    ledger.grant_credits(user.pk, 5_000, key="grant:1")
    record_usage(user, 1_000_000)
    return user


def use(user):
    stands = usage_status.get_usage_status(user.pk, datetime.now(UTC))
    return stands.daily.used_microdollars, stands.weekly.used_microdollars


def set_use(user, day, week):
    for kind, amount in (("DAY", day), ("WEEK", week)):
        UsageWindow.objects.filter(account__user=user, kind=kind).update(used_microdollars=amount)


def code_of(act):
    try:
        act()
    except BillingRequestRefused as refusal:
        return refusal.code
    return "done"


def at_once(acts):
    barrier = threading.Barrier(len(acts))

    def go(act):
        barrier.wait()
        try:
            return code_of(act)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(go, acts))


@pytest.mark.parametrize(
    ("used", "limit", "percent"),
    [
        (499, 1_000_000, 0.0),
        (500, 1_000_000, 0.1),
        (999_999, 1_000_000, 99.9),
        (1_000_000, 1_000_000, 100.0),
        (3_000_000, 1_000_000, 100.0),
        (5, 0, None),
    ],
)
def test_percent(used, limit, percent):
    """B8.c1: 100.0 exactly when nothing is left, and no limit is null."""
    assert plans.compute_percent_used(used, limit) == percent


def test_a_reset_charges_forgives_and_lets_the_user_go_on(ada):
    """B8.2: day 0, the week lowered by the daily limit, hooks called, the fresh view in the answer."""
    with pytest.raises(LimitReached) as refused:
        limit_checks.check_limits(ada.pk)
    assert (refused.value.can_reset, refused.value.reset_cost_cents) == (True, 500)
    made = resets.buy_usage_reset(ada.pk)
    assert (made.credits_charged_cents, made.balance_cents) == (500, 4_500)
    assert (made.usage.daily.percent_used, made.usage.resets_left_today) == (0.0, 4)
    assert use(ada) == (0, 0)
    assert lifted == [ada.pk]
    limit_checks.check_limits(ada.pk)
    assert not list(windows.find_window_mismatches())  # B5.7 holds


@rounds(2, 50)
@pytest.mark.timeout(600)
def test_of_ten_resets_at_once_one_succeeds(ada, rounds):
    """B8.c3, B20.7: double reset: one SPEND each round, the others are refused."""
    LimitPolicy.objects.update(max_paid_resets_per_day=rounds)
    policies.clear_policy_cache()
    ledger.grant_credits(ada.pk, 500 * rounds, key="grant:2")
    for number in range(1, rounds + 1):
        set_use(ada, 1_000_000, 1_000_000)
        answers = at_once(
            [lambda key=f"{number}-{n}": resets.buy_usage_reset(ada.pk, key=key) for n in range(10)]
        )
        assert answers.count("done") == 1
        assert set(answers) <= {"done", "reset_in_progress", "not_over_limit"}
        assert LedgerEntry.objects.filter(kind="SPEND").count() == number
    assert credit_statements.get_balance(ada.pk).balance_cents == 5_000


def test_a_key_buys_one_reset(ada):
    """B8.c4: twice in parallel and once more later: one charge, one answer."""
    answers = at_once([lambda: resets.buy_usage_reset(ada.pk, key="k")] * 2)
    assert set(answers) <= {"done", "reset_in_progress"}
    assert resets.buy_usage_reset(ada.pk, key="k").credits_charged_cents == 500
    assert resets.buy_usage_reset(ada.pk, key="k").balance_cents == 4_500
    assert LedgerEntry.objects.filter(kind="SPEND").count() == 1


def test_a_reset_that_cannot_be_told_is_undone(ada, monkeypatch):
    """B8.c5: Redis fails between spend and publish: 503, everything as before, SPEND and REFUND."""
    usage_before, publish = use(ada), redis_counters.publish_copies

    def fail(copies):
        monkeypatch.setattr(redis_counters, "publish_copies", publish)
        monkeypatch.setattr(
            redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
        )
        record_usage(ada, 7)  # meanwhile: it stays counted
        publish(copies)

    monkeypatch.setattr(redis_counters, "publish_copies", fail)
    with pytest.raises(UsageResetUnavailable) as refused:
        resets.buy_usage_reset(ada.pk, key="k")
    assert refused.value.details() == {"refunded": True}
    assert use(ada) == (usage_before[0] + 7, usage_before[1] + 7)
    assert credit_statements.get_balance(ada.pk).balance_cents == 5_000
    assert [entry.kind for entry in LedgerEntry.objects.order_by("pk")] == ["GRANT", "SPEND", "REFUND"]
    assert UsageReset.objects.get().state == "REFUNDED"
    assert not list(windows.find_window_mismatches())
    assert code_of(lambda: resets.buy_usage_reset(ada.pk, key="k")) == "reset_unavailable"  # as then


def test_a_reset_must_help(ada):
    """B8.c6: week 5,000,000 becomes 4,000,000; of 6,500,000 too much would stay."""
    set_use(ada, 1_000_000, 6_500_000)
    assert code_of(lambda: resets.buy_usage_reset(ada.pk)) == "weekly_limit_reached"
    assert not LedgerEntry.objects.filter(kind="SPEND").exists()
    set_use(ada, 1_000_000, 5_000_000)
    resets.buy_usage_reset(ada.pk)
    assert use(ada) == (0, 4_000_000)


def test_every_refusal_of_a_reset_has_its_code(ada, monkeypatch):
    """B8.2: in its order, and none of them costs anything."""
    bob = factories.user("bob")
    assert code_of(lambda: resets.buy_usage_reset(bob.pk)) == "not_over_limit"
    record_usage(bob, 1_000_000)
    assert code_of(lambda: resets.buy_usage_reset(bob.pk)) == "insufficient_credits"
    account = accounts.get_or_create_account(bob.pk)
    accounts.set_limit_overrides(account.pk, daily_limit_microdollars=0, weekly_limit_microdollars=None)
    assert code_of(lambda: resets.buy_usage_reset(bob.pk)) == "no_daily_limit"
    LimitPolicy.objects.update(max_paid_resets_per_day=0)
    policies.clear_policy_cache()
    assert code_of(lambda: resets.buy_usage_reset(ada.pk)) == "too_many_resets"
    LimitPolicy.objects.update(reset_cost_cents=0)
    policies.clear_policy_cache()
    assert code_of(lambda: resets.buy_usage_reset(ada.pk)) == "reset_not_available"
    LimitPolicy.objects.update(reset_cost_cents=500)
    policies.clear_policy_cache()
    monkeypatch.setattr(
        redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
    )
    assert code_of(lambda: resets.buy_usage_reset(ada.pk)) == "reset_unavailable"
    assert credit_statements.get_balance(ada.pk).balance_cents == 5_000


def test_a_reset_whose_request_died_is_effective(ada, redis_clean):
    """B8.3: charged and valid, though Redis still says otherwise."""
    with pytest.raises(LimitReached):
        limit_checks.check_limits(ada.pk)
    stale = {key: redis_clean.get(key) for key in redis_clean.keys("*:billing:cost:*")}
    resets.buy_usage_reset(ada.pk)
    for key, value in stale.items():
        redis_clean.set(key, value)
    limit_checks.check_limits(ada.pk)
    assert read_cached_usage(ada).daily.used_microdollars == 0


KILLED_HALFWAY = """
import os, sys, django
django.setup()
from billing import ledger
from billing.usage import resets
spend = ledger.spend
def spend_and_die(*args, **kwargs):
    spend(*args, **kwargs)
    os._exit(9)
ledger.spend = spend_and_die
resets.buy_usage_reset(int(sys.argv[1]), key="k")
"""


def test_a_worker_killed_between_charge_and_reset_has_done_neither(ada, redis_clean):
    """B8.3, B1.4: what was charged goes with the process; the lock it left runs out, and the same key buys one reset."""
    died = subprocess.run(
        [sys.executable, "-c", KILLED_HALFWAY, str(ada.pk)],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        check=False,
    )
    assert died.returncode == 9, died.stderr
    assert (credit_statements.get_balance(ada.pk).balance_cents, use(ada)) == (5_000, (1_000_000, 1_000_000))
    assert code_of(lambda: resets.buy_usage_reset(ada.pk, key="k")) == "reset_in_progress"
    [lock] = redis_clean.keys("*:billing:reset:*")
    assert 0 < redis_clean.ttl(lock) <= redis_counters.RESET_LOCK_SECONDS
    redis_clean.delete(lock)  # as its end would
    assert resets.buy_usage_reset(ada.pk, key="k").balance_cents == 4_500
    assert use(ada) == (0, 0)


@rounds(4, 50)
@pytest.mark.timeout(600)
def test_paid_resets_and_recordings_at_once_lose_nothing(ada, rounds):
    """B20.7: reset against recording: what comes before the reset is forgiven, what comes after it counts."""
    LimitPolicy.objects.update(max_paid_resets_per_day=rounds)
    policies.clear_policy_cache()
    ledger.grant_credits(ada.pk, 500 * rounds, key="grant:2")
    for _ in range(rounds):
        short = 1_000_000 - use(ada)[0]
        if short > 0:
            record_usage(ada, short)
        answers = at_once([lambda: resets.buy_usage_reset(ada.pk), *[lambda: record_usage(ada, 3)] * 3])
        assert answers == ["done"] * 4
        assert use(ada)[0] in (0, 3, 6, 9)
        assert not list(windows.find_window_mismatches())  # B5.7: nothing lost, nothing counted twice
    assert credit_statements.get_balance(ada.pk).balance_cents == 5_000


@pytest.mark.parametrize("rounds", [8, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_resets_and_recordings_at_once_lose_nothing(ada, rounds):
    """B20.7: reset against recording, in both orders, without waiting for each other in a circle."""
    for _ in range(rounds):
        UsageWindow.objects.filter(account__user=ada, kind="DAY").update(used_microdollars=1_000_000)
        at_once(
            [
                lambda: resets.reset_usage_as_staff(ada.pk, weekly=False, actor_id=None, reason="r"),
                *[lambda: record_usage(ada, 3)] * 3,
            ]
        )
    week = sum(UsageReset.objects.values_list("weekly_forgiven_microdollars", flat=True))
    assert week == 0
    assert use(ada)[1] == 1_000_000 + rounds * 3 * 3


def test_staff_forgive_the_day_and_the_week_if_asked(ada):
    """B8.c7: free, audited, not counted; the week only on request."""
    grace = factories.grace()
    set_use(ada, 500_000, 3_000_000)
    assert resets.reset_usage_as_staff(ada.pk, weekly=False, actor_id=grace.pk, reason="an outage")
    assert use(ada) == (0, 3_000_000)
    resets.reset_usage_as_staff(ada.pk, weekly=True, actor_id=grace.pk, reason="an outage")
    assert use(ada) == (0, 0)
    assert {(one.actor_id, one.reason, one.kind) for one in UsageReset.objects.all()} == {
        (grace.pk, "an outage", "STAFF")
    }
    assert usage_status.get_usage(ada.pk).resets_left_today == 5
    assert lifted == [ada.pk, ada.pk]


def stumble(**_signal):
    raise ValueError("a receiver's own fault")


def test_a_failing_receiver_undoes_nothing(ada, caplog):
    """B2.4: it is logged."""
    with receiving_only(signals.limit_lifted, stumble, note_lifted):
        resets.buy_usage_reset(ada.pk)
    assert use(ada) == (0, 0)
    assert "a receiver's own fault" in caplog.text
    assert lifted == [ada.pk]  # the others are called all the same
