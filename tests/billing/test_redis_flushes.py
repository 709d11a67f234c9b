"""B1.3: Redis is a disposable copy. It is emptied before each single command that billing sends, and no figure changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import redis
from django.contrib.auth.models import User

from billing import accounts, ledger, policies
from billing.errors import BillingRequestRefused
from billing.models import LimitPolicy
from billing.selectors import credit_statements, usage_status
from billing.usage import limit_checks, resets, windows
from tests.support import factories
from tests.support.usage import read_cached_usage, record_usage

pytestmark = pytest.mark.django_db(transaction=True)
_people = itertools.count(1)


@pytest.fixture(autouse=True)
def _held():
    LimitPolicy.objects.update(turn_hold_microdollars=100_000)
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


def life(ada: User) -> list[Callable[[], object]]:
    """Turns with holds and costs; a limit that is reached, bought again, reset by staff, and lowered."""
    account = accounts.get_or_create_account(ada.pk)
    return [
        lambda: limit_checks.check_limits(ada.pk),
        lambda: limit_checks.check_limits_and_hold(ada.pk, "turn-1"),
        lambda: record_usage(ada, 400_000),
        lambda: limit_checks.renew_turn_hold(ada.pk, "turn-1"),
        lambda: record_usage(ada, 300_000),
        lambda: limit_checks.check_limits(ada.pk),
        lambda: limit_checks.release_turn_hold(ada.pk, "turn-1"),
        lambda: record_usage(ada, 300_001),
        lambda: limit_checks.check_limits(ada.pk),
        lambda: limit_checks.check_limits_and_hold(ada.pk, "turn-2"),
        lambda: resets.buy_usage_reset(ada.pk, key="buy"),
        lambda: resets.buy_usage_reset(ada.pk, key="buy"),
        lambda: limit_checks.check_limits(ada.pk),
        lambda: record_usage(ada, 1_000_000),
        lambda: limit_checks.check_limits(ada.pk),
        lambda: resets.reset_usage_as_staff(ada.pk, weekly=True, actor_id=None, reason="ours"),
        lambda: limit_checks.check_limits_and_hold(ada.pk, "turn-3"),
        lambda: record_usage(ada, 10),
        lambda: accounts.set_limit_overrides(
            account.pk, daily_limit_microdollars=10, weekly_limit_microdollars=0
        ),
        lambda: limit_checks.check_limits(ada.pk),
        lambda: windows.publish_recent_windows(),
    ]


def lived() -> list[object]:
    """After each step: whether it was refused, and every figure there is."""
    ada = factories.user(f"ada-{next(_people)}")
    ledger.grant_credits(ada.pk, 5_000, key=f"grant:{ada.pk}")
    figures: list[object] = []
    for act in life(ada):
        try:
            act()
            refusal = ""
        except BillingRequestRefused as problem:
            refusal = problem.code
        limits = usage_status.get_staff_limits(ada.pk)
        figures.append((
            refusal, limits.daily_used_microdollars, limits.weekly_used_microdollars, limits.tier,
            limits.daily_limit_microdollars, usage_status.get_usage(ada.pk), credit_statements.get_balance(ada.pk),
        ))  # fmt: skip
    _copies_tell_no_lie(ada)
    return figures


def _copies_tell_no_lie(ada: User) -> None:
    """Redis has nothing of a window, or what its row has."""
    limits, copies = usage_status.get_staff_limits(ada.pk), read_cached_usage(ada)
    for copy, used in (
        (copies.daily, limits.daily_used_microdollars),
        (copies.weekly, limits.weekly_used_microdollars),
    ):
        assert copy is None or copy.used_microdollars == used


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_emptying_redis_at_any_moment_changes_no_figure(redis_clean, monkeypatch, every):
    """B1.c2: before the hold, while it runs, between a record and its copy, in the midst of a reset, before each refusal"""
    commands, moment = 0, -1
    send = redis.Redis.execute_command

    def counted(self, *args, **options):
        nonlocal commands
        if commands == moment:
            send(redis_clean, "FLUSHDB")
        commands += 1
        return send(self, *args, **options)

    monkeypatch.setattr(redis.Redis, "execute_command", counted)
    as_it_should_be = lived()
    sent = commands
    assert sent > 20
    assert {figure[0] for figure in as_it_should_be} == {"", "limit_reached"}
    for moment in range(0, sent + 8, every):  # after a flush a few more are needed
        commands = 0
        assert lived() == as_it_should_be, f"emptied before command {moment}"
    assert commands > 20
