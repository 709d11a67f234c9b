"""B5, B6: Redis is a copy that may vanish, lag or lie; what it says is bounded by what the rows say."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from billing import accounts, metrics, plans, policies, redis_counters
from billing.errors import LimitReached
from billing.models import Account, LimitPolicy, UsageWindow
from billing.selectors import usage_status
from billing.tasks import publish_windows
from billing.usage import limit_checks, usage_records
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.redis_outages import make_connection_pool
from tests.support.usage import make_usage_call, read_cached_usage, record_usage, windows

pytestmark = pytest.mark.django_db(transaction=True)
GONE = -1


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone():
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def ada():
    return factories.user("ada")


@pytest.fixture
def dead_redis(monkeypatch):
    """Nobody answers at this address."""
    monkeypatch.setattr(
        redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
    )


def refusal(user):
    try:
        limit_checks.check_limits(user.pk)
    except LimitReached as limit:
        return limit.window, limit.reason
    return None


def used(user):
    return {
        row.kind: row.used_microdollars
        for row in UsageWindow.objects.filter(account__user=user).order_by("kind")
    }


@pytest.fixture
def sent(monkeypatch):
    """The commands that billing sends."""
    names, client = [], redis_counters.get_redis_client()
    execute = client.execute_command

    def noting(name, *args, **options):
        names.append(name)
        return execute(name, *args, **options)

    monkeypatch.setattr(client, "execute_command", noting)
    return names


# --- recording and rebuilding ---------------------------------------------------------------------------


def test_a_flush_is_healed_by_the_next_check(ada, redis_clean):
    """B5.c1: the check refuses, and both keys live exactly as long as their windows."""
    for _ in range(3):
        record_usage(ada, 400_000)
    redis_clean.flushdb()
    assert refusal(ada) == ("daily", "used")
    for window in windows():
        ends = redis_clean.pexpiretime(redis_counters.build_cost_key(ada.pk, window)) / 1000
        assert abs(ends - window.resets_at.timestamp()) <= 2


def test_keys_have_the_names_operators_know(ada):
    """B5.3: one slot per user, the ISO year in the week."""
    at = datetime(2027, 1, 1, tzinfo=UTC)
    assert (
        redis_counters.build_cost_key(7, plans.get_day_window(at))
        == f"{settings.REDIS_KEY_PREFIX}:billing:cost:{{7}}:d:2027-01-01"
    )
    assert (
        redis_counters.build_cost_key(7, plans.get_week_window(at))
        == f"{settings.REDIS_KEY_PREFIX}:billing:cost:{{7}}:w:2026-W53"
    )


def test_recording_creates_no_key_and_raises_one_that_is_there(ada):
    """B5.4: a missing key stays missing; a key that is there follows."""
    record_usage(ada, 1_000)
    assert (read_cached_usage(ada).daily, read_cached_usage(ada).weekly) == (None, None)
    limit_checks.check_limits(ada.pk)
    record_usage(ada, 2_000)
    assert (
        read_cached_usage(ada).daily
        == read_cached_usage(ada).weekly
        == redis_counters.WindowAmount(used_microdollars=3_000, version=2)
    )


def test_publishing_may_be_late_and_repeated(ada):
    """B5.4: values are absolute, and an older one says nothing."""
    limit_checks.check_limits(ada.pk)
    day, _ = windows()
    for version in (2, 5, 3, 5):
        amount = redis_counters.WindowAmount(used_microdollars=version * 10, version=version)
        redis_counters.publish_copies([redis_counters.build_amount_copy(ada.pk, day, amount)])
    assert read_cached_usage(ada).daily == redis_counters.WindowAmount(used_microdollars=50, version=5)


@rounds(1, 50)
@pytest.mark.timeout(600)
def test_many_record_read_and_flush_at_once(redis_clean, rounds):
    """B5.c2, B20.7: rebuild against recording: the row has everything, and Redis has no key or everything, without the beat task."""
    for number in range(rounds):
        _record_read_and_flush(factories.user(f"recorder-{number}"), redis_clean)


def _record_read_and_flush(ada, redis_clean):
    accounts.get_or_create_account(ada.pk)
    barrier, done = threading.Barrier(23), threading.Event()

    def recording():
        barrier.wait()
        record_usage(ada, 1_000)
        connections.close_all()

    def repeating(act):
        barrier.wait()
        while not done.is_set():
            act()
        connections.close_all()

    with ThreadPoolExecutor(23) as pool:
        others = [
            pool.submit(repeating, act)
            for act in (lambda: refusal(ada), lambda: refusal(ada), redis_clean.flushdb)
        ]
        for one in [pool.submit(recording) for _ in range(20)]:
            one.result()
        done.set()
        for other in others:
            other.result()
    assert used(ada) == {"DAY": 20_000, "WEEK": 20_000}
    for amount in (read_cached_usage(ada).daily, read_cached_usage(ada).weekly):
        assert amount is None or amount.used_microdollars == 20_000


def test_no_interleaving_of_records_reads_and_flushes_leaves_a_key_too_low():
    """B5.c2: a model of B5.4 and B5.5 walks all of them; without the second load it would find one that does."""
    assert not _too_low(second_load=True)
    assert _too_low(second_load=False)


def _too_low(*, second_load):
    """Whether some order of 3 records, 2 reads and 2 flushes ends with a key below its row.

    A state: the row, the key (GONE = missing), and of every actor its next step and what it remembers.
    """
    start = (0, GONE, ((0, 0),) * 3, ((0, 0),) * 2, 2)
    waiting, known = [start], {start}
    while waiting:
        row, key, records, reads, flushes = state = waiting.pop()
        following = [
            *_record_steps(state),
            *_read_steps(state, second_load=second_load),
        ]
        if flushes:
            following.append((row, GONE, records, reads, flushes - 1))
        if not following and GONE < key < row:
            return True
        for one in following:
            if one not in known:
                known.add(one)
                waiting.append(one)
    return False


def _record_steps(state):
    row, key, records, reads, flushes = state
    for index, (step, mine) in enumerate(records):
        if step == 0:
            yield row + 1, key, _with(records, index, (1, row + 1)), reads, flushes
        elif step == 1:
            published = GONE if key == GONE else max(key, mine)
            yield row, published, _with(records, index, (2, 0)), reads, flushes


def _read_steps(state, *, second_load):
    row, key, records, reads, flushes = state
    for index, (step, mine) in enumerate(reads):
        if step == 0:  # look for the key
            after = (1, 0) if key == GONE else (5, 0)
            yield row, key, records, _with(reads, index, after), flushes
        elif step == 1:  # load
            yield row, key, records, _with(reads, index, (2, row)), flushes
        elif step == 2:  # create, or raise
            made = max(key, mine)
            yield row, made, records, _with(reads, index, (3, mine) if second_load else (5, 0)), flushes
        elif step == 3:  # load once more
            yield row, key, records, _with(reads, index, (4, row) if row != mine else (5, 0)), flushes
        elif step == 4:  # publish
            published = GONE if key == GONE else max(key, mine)
            yield row, published, records, _with(reads, index, (5, 0)), flushes


def _with(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


def test_one_call_recorded_twice_at_once_counts_once(ada):
    """B5.c3: one record, one addition."""
    accounts.get_or_create_account(ada.pk)
    for _ in range(10):
        made = make_usage_call(ada, at=datetime.now(UTC), reported="0.001000")
        before, barrier = used(ada).get("DAY", 0), threading.Barrier(2)

        def recording(made=made, barrier=barrier):
            barrier.wait()
            usage_records.record_usage(made)
            connections.close_all()

        with ThreadPoolExecutor(2) as pool:
            for one in [pool.submit(recording), pool.submit(recording)]:
                one.result()
        assert used(ada)["DAY"] == before + 1_000


def test_a_failed_publication_is_repaired_automatically(ada, monkeypatch):
    """B5.c4, B5.6: Redis is down while recording; when it is back, the beat task says the right amount."""
    limit_checks.check_limits(ada.pk)
    failures = metrics.publish_failures._value.get()
    with monkeypatch.context() as patch:
        patch.setattr(
            redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
        )
        record_usage(ada, 700)
    assert metrics.publish_failures._value.get() == failures + 1
    assert read_cached_usage(ada).daily.used_microdollars == 0
    publish_windows()
    assert (
        read_cached_usage(ada).daily.used_microdollars
        == read_cached_usage(ada).weekly.used_microdollars
        == 700
    )


@pytest.mark.parametrize(
    ("first", "second", "days", "weeks"),
    [
        ("2026-11-18T23:59:59.900000Z", "2026-11-19T00:00:00Z", 2, 1),
        ("2026-11-22T23:59:59.900000Z", "2026-11-23T00:00:00Z", 2, 2),
        ("2026-12-28T12:00:00Z", "2027-01-01T12:00:00Z", 2, 1),
    ],
)
def test_a_call_belongs_to_the_windows_of_its_end(ada, first, second, days, weeks):
    """B5.c5: midnight parts days, Sunday night parts weeks, New Year does not."""
    for text in (first, second):
        record_usage(ada, 1, at=datetime.fromisoformat(text))
    rows = UsageWindow.objects.filter(account__user=ada)
    assert (rows.filter(kind="DAY").count(), rows.filter(kind="WEEK").count()) == (days, weeks)


def test_a_lost_row_is_rebuilt_from_the_usage_records(ada, redis_clean):
    """B5.5: by a read, and by a recording that comes first."""
    for _ in range(2):
        record_usage(ada, 300)
    UsageWindow.objects.all().delete()
    redis_clean.flushdb()
    limit_checks.check_limits(ada.pk)
    assert used(ada) == {"DAY": 600, "WEEK": 600}
    UsageWindow.objects.all().delete()
    record_usage(ada, 1)
    assert used(ada) == {"DAY": 601, "WEEK": 601}


def test_rows_that_do_not_add_up_are_reported_and_repaired(ada, capsys):
    """B5.7: exit status 1, then right again, with a new version that copies follow."""
    record_usage(ada, 500)
    limit_checks.check_limits(ada.pk)
    call_command("billing_verify")
    UsageWindow.objects.filter(kind="DAY").update(used_microdollars=7)
    with pytest.raises(CommandError) as refused:
        call_command("billing_verify")
    assert refused.value.returncode == 1
    call_command("billing_verify", repair=True)
    assert used(ada)["DAY"] == 500
    assert read_cached_usage(ada).daily == redis_counters.WindowAmount(used_microdollars=500, version=2)
    call_command("billing_verify")


# --- checking -------------------------------------------------------------------------------------------


def test_a_check_is_one_round_trip_and_no_statement(ada, sent):
    """B6.4, B19.6: in the ordinary case."""
    record_usage(ada, 1)
    limit_checks.check_limits(ada.pk)
    sent.clear()
    with CaptureQueriesContext(connection) as statements:
        limit_checks.check_limits(ada.pk)
    assert len(statements) == 0
    assert sent == ["MGET"]


def test_without_redis_nobody_is_limited(ada, dead_redis, caplog):
    """B6.c2: allowed, with a warning and a count."""
    before = metrics.limit_checks.labels("degraded")._value.get()
    record_usage(ada, 1_000_000)
    assert refusal(ada) is None
    assert metrics.limit_checks.labels("degraded")._value.get() == before + 1
    assert "limit_check_degraded" in caplog.text


@pytest.mark.parametrize("by", ["policy", "overrides"])
def test_without_limits_redis_is_not_asked(ada, sent, by):
    """B6.c2: both limits 0, by the base or by the account: no command is sent."""
    if by == "policy":
        LimitPolicy.objects.update(daily_base_microdollars=0, weekly_base_microdollars=0)
        policies.clear_policy_cache()
    else:
        account = accounts.get_or_create_account(ada.pk)
        accounts.set_limit_overrides(account.pk, daily_limit_microdollars=0, weekly_limit_microdollars=0)
    sent.clear()
    assert refusal(ada) is None
    assert sent == []


@pytest.mark.parametrize("value", ["99 999999999", "1 999999999", "nonsense", "0 1"])
def test_what_redis_claims_locks_nobody_out(ada, redis_clean, value):
    """B6.c3: a wrong value is not believed, and the next read finds it corrected."""
    record_usage(ada, 5)
    limit_checks.check_limits(ada.pk)
    redis_clean.set(redis_counters.build_cost_key(ada.pk, windows()[0]), value)
    assert refusal(ada) is None
    limit_checks.check_limits(ada.pk)
    if value != "0 1":  # too low and old: it is raised by the next publishing
        assert read_cached_usage(ada).daily == redis_counters.WindowAmount(used_microdollars=5, version=1)


def test_a_tier_acts_at_once_and_a_change_by_hand_within_seconds(ada):
    """B6.3: by its writer's word, or by the look that every process takes every few seconds."""
    record_usage(ada, 1_000_000)
    assert refusal(ada) == ("daily", "used")
    account = accounts.get_or_create_account(ada.pk)
    accounts.set_limit_overrides(
        account.pk, daily_limit_microdollars=2_000_000, weekly_limit_microdollars=None
    )
    assert refusal(ada) is None
    Account.objects.update(daily_limit_override_microdollars=3)
    assert policies.publish_entitlement_changes() == 1  # what every process in use does every two seconds
    assert refusal(ada) == ("daily", "used")


def test_a_raised_base_reaches_every_process(ada):
    """B6.c5: a process keeps what it read for three seconds at most, and reads ahead while it is in use."""
    record_usage(ada, 1_000_000)
    seconds = 0.0
    processes = [policies.CachedValue(policies._load_rules, clock=lambda: seconds) for _ in range(2)]
    assert [one.get().policy.daily_base_microdollars for one in processes] == [1_000_000] * 2
    LimitPolicy.objects.update(daily_base_microdollars=2_000_000)
    seconds = 4.9
    assert [one.get().policy.daily_base_microdollars for one in processes] == [2_000_000] * 2
    assert policies.REFRESH_SECONDS < policies.CACHE_SECONDS < 5


def test_an_entitlement_copied_from_an_old_row_is_put_right_by_the_second_look(ada, monkeypatch):
    """B5.5: a tier that changes between the first look and the copy."""
    record_usage(ada, 1)
    original = redis_counters.create_copies

    def change_meanwhile(copies):
        original(copies)
        Account.objects.update(tier="PRO")

    monkeypatch.setattr(redis_counters, "create_copies", change_meanwhile)
    limit_checks.check_limits(ada.pk)
    assert read_cached_usage(ada).entitlement.tier == "PRO"


# --- holds ----------------------------------------------------------------------------------------------


@pytest.fixture
def holds():
    LimitPolicy.objects.update(turn_hold_microdollars=200_000)
    policies.clear_policy_cache()


def admitted(user, hold):
    try:
        limit_checks.check_limits_and_hold(user.pk, hold)
    except LimitReached as limit:
        return limit.reason
    return "admitted"


@rounds(1, 50)
@pytest.mark.timeout(600)
def test_of_ten_turns_admitted_at_once_as_many_pass_as_there_is_room_for(holds, rounds):
    """B6.c4, B20.7: parallel admit: 700,000 of 1,000,000 used and 200,000 held for each: two; one more after one settles."""
    for number in range(rounds):
        _admit_ten(factories.user(f"admitted-{number}"))


def _admit_ten(ada):
    record_usage(ada, 700_000)
    barrier = threading.Barrier(10)

    def admitting(number):
        barrier.wait()
        answer = admitted(ada, f"turn-{number}")
        connections.close_all()
        return answer

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(admitting, range(10)))
    assert sorted(answers) == ["admitted"] * 2 + ["held"] * 8
    first = answers.index("admitted")
    assert admitted(ada, f"turn-{first}") == "admitted"  # the same id adds nothing
    limit_checks.release_turn_hold(ada.pk, f"turn-{first}")
    assert admitted(ada, "another") == "admitted"
    assert admitted(ada, "one more") == "held"


def test_a_hold_outlives_no_fault(ada, holds, monkeypatch, redis_clean):
    """B6.c6: Redis dies between admit and settle; the hold has an end of its own."""
    record_usage(ada, 900_000)
    assert admitted(ada, "turn") == "admitted"
    with monkeypatch.context() as patch:
        patch.setattr(
            redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
        )
        limit_checks.release_turn_hold(ada.pk, "turn")
        limit_checks.renew_turn_hold(ada.pk, "turn")
    assert 0 < redis_clean.ttl(redis_counters.build_holds_key(ada.pk)) <= redis_counters.HOLD_SECONDS
    assert admitted(ada, "next") == "held"
    redis_clean.hset(redis_counters.build_holds_key(ada.pk), "turn", "200000 1")  # its time is over
    assert admitted(ada, "next") == "admitted"


def test_a_forgotten_hold_comes_back_with_the_next_renewal(ada, holds, redis_clean):
    """B6.9: and is no part of what the user sees."""
    record_usage(ada, 800_000)
    admitted(ada, "turn")
    redis_clean.flushdb()
    limit_checks.renew_turn_hold(ada.pk, "turn")
    assert admitted(ada, "next") == "held"
    assert usage_status.get_usage(ada.pk).daily.percent_used == 80.0


def test_a_refusal_for_holds_is_confirmed_by_the_rows(ada, holds, redis_clean):
    """B6.7: use from the rows, holds from Redis."""
    record_usage(ada, 100)
    limit_checks.check_limits(ada.pk)
    redis_clean.set(redis_counters.build_cost_key(ada.pk, windows()[0]), "99 999999999")
    assert admitted(ada, "turn") == "admitted"


def test_counters_that_vanish_again_and_again_keep_nobody_out(ada, holds, monkeypatch):
    """B6.7: repeated at most twice, then allowed without a hold."""
    tries = []

    def missing(*args, **kwargs):
        tries.append(args)
        return redis_counters.HoldResult(answer="missing", held_microdollars=0)

    monkeypatch.setattr(redis_counters, "place_hold", missing)
    assert admitted(ada, "turn") == "admitted"
    assert len(tries) == 3


def test_with_holds_off_admitting_after_a_check_asks_nobody(ada, sent):
    """B7.1: the check has just passed."""
    LimitPolicy.objects.update(turn_hold_microdollars=0)
    policies.clear_policy_cache()
    limit_checks.check_limits(ada.pk)
    sent.clear()
    with CaptureQueriesContext(connection) as statements:
        limit_checks.check_limits_and_hold(ada.pk, "turn", checked=True)
        limit_checks.release_turn_hold(ada.pk, "turn")
        limit_checks.renew_turn_hold(ada.pk, "turn")
    assert len(statements) == 0
    assert sent == []
