"""A user's turns run at most so many at once as the plan says; more wait in line, and none is lost."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connection

from billing import policies, redis_counters
from billing.models import Account, LimitPolicy, ModelPrice, TierPolicy, UsageWindow
from config.core.client_address import bind_client_address, hash_client_address
from config.core.errors import TooManyRequests
from copilot.chat import (
    admission_outcomes,
    compaction_requests,
    side_questions,
    stop,
    turn_transitions,
    turns,
)
from copilot.models import Session, Turn
from copilot.providers.base import ModelRequest
from copilot.providers.scripted import ScriptedCall, ScriptedText, ScriptItem
from copilot.worker import recovery
from diagnostics import reaper, turn_filters
from tests.support import factories
from tests.support.turn_engine import (
    Errand,
    Model,
    Rig,
    add_tools,
    cue,
    ended,
    endings,
    folded,
    fresh,
    make_cost_report,
    notices,
    say,
    start,
    status,
    together,
    told,
    until,
)
from tests.support.usage import record_usage

NUMBER = re.compile(r"Say (\d+)")


def allow(turns_at_once: int, tier: str = "FREE") -> None:
    TierPolicy.objects.update_or_create(tier=tier, defaults={"multiplier": 1, "turns_at_once": turns_at_once})
    policies.clear_policy_cache()


def numbered(request: ModelRequest) -> list[ScriptItem]:
    """Answer "Say 3" when cue 3 is given."""
    number = int(NUMBER.findall(repr(request.messages))[-1])
    return [ScriptedText(f"Three cheers, {number}"), cue(number)]


def begin(*numbers: int) -> dict[int, Turn]:
    """Send one message to a session of its own for each number."""
    begun = {}
    for number in numbers:
        begun[number] = Turn.objects.get(pk=start(factories.session(), f"Say {number}"))
    return begun


def statuses(begun: dict[int, Turn]) -> dict[int, str]:
    return {number: status(turn.pk) for number, turn in begun.items()}


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone(request: pytest.FixtureRequest):
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def answering(rig: Rig, model: Model) -> Model:
    model.otherwise = numbered
    return model


# --- in line -----------------------------------------------------------------------------------------


def test_turns_beyond_the_cap_are_accepted_and_start_in_order(answering):
    allow(2)
    begun = begin(1, 2, 3, 4)
    answering.reaches(1)
    answering.reaches(2)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 2)
    assert statuses(begun) == {1: "running", 2: "running", 3: "queued", 4: "queued"}
    answering.give(2)
    assert ended(begun[2].pk).status == "succeeded"
    answering.reaches(3)
    assert statuses(begun) == {1: "running", 2: "succeeded", 3: "running", 4: "queued"}
    for number in (1, 3, 4):
        answering.give(number)
        assert ended(begun[number].pk).status == "succeeded"
    assert all(len(endings(turn.session_id, turn.pk)) == 1 for turn in begun.values())


def test_a_waiting_turn_says_why_live_and_after_a_reload(answering):
    allow(1)
    begun = begin(1, 2)
    answering.reaches(1)
    session = begun[2].session
    until(lambda: told(session.pk, "turn.throttled"))
    assert [event.reason for event in told(session.pk, "turn.throttled")] == ["user"]
    reloaded = fresh(session)
    assert (reloaded.turn.status, reloaded.turn.throttle) == ("queued", "user")
    live = folded(fresh(factories.session()), session)
    assert (live.turn.status, live.turn.throttle) == ("queued", "user")
    answering.give(1)
    answering.reaches(2)
    assert fresh(session).turn.throttle == ""
    assert folded(fresh(factories.session()), session).turn.throttle == ""
    answering.give(2)
    ended(begun[2].pk)


def test_a_stop_ends_a_waiting_turn_once_and_the_next_one_moves_up(answering):
    allow(1)
    begun = begin(1, 2, 3)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 2)
    stop.stop_session(begun[2].session.owner_id, begun[2].session_id)
    assert ended(begun[2].pk).status == "cancelled"
    assert len(endings(begun[2].session_id, begun[2].pk)) == 1
    answering.give(1)
    answering.reaches(3)
    answering.give(3)
    assert ended(begun[3].pk).status == "succeeded"
    assert len(answering.requests) == 2


def test_a_turn_that_waits_for_a_person_makes_room(answering, monkeypatch):
    allow(1)
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    answering.will(ScriptedCall("pay", {}))
    paused = start(factories.session(), "Pay")
    until(lambda: status(paused) == "waiting")
    begun = begin(1)
    answering.reaches(1)
    answering.give(1)
    assert ended(begun[1].pk).status == "succeeded"


def test_turns_behind_one_that_pauses_start_by_themselves(answering, monkeypatch):
    allow(1)
    pay = Errand("pay", approval="ask")
    add_tools(monkeypatch, pay)
    answering.will(cue(9), ScriptedCall("pay", {}))
    paused = start(factories.session(), "Pay")
    answering.reaches(9)
    begun = begin(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 1)
    answering.give(9)
    answering.reaches(1)
    assert status(paused) == "waiting"
    answering.give(1)
    assert ended(begun[1].pk).status == "succeeded"


def test_sub_sessions_pass_a_parent_that_waits_for_them(rig, model):
    """A parent that holds the only place waits for a child: counting children would never end."""
    allow(1)
    model.will(ScriptedCall("run_sub_session", {"prompt": "Look into it"}))
    model.will(ScriptedText("Found."))
    turn = ended(start(factories.session()))
    assert turn.status == "succeeded"
    assert Turn.objects.get(parent=turn).status == "succeeded"


def test_one_users_cap_keeps_nobody_else_waiting(answering):
    allow(1)
    begin(1, 2)
    answering.reaches(1)
    other = start(factories.session(factories.bob()), "Say 5")
    answering.reaches(5)
    for number in (1, 5, 2):
        answering.give(number)
    assert ended(other).status == "succeeded"


def test_the_cap_is_the_plans_and_zero_is_none(answering):
    allow(1)
    allow(0, tier="PRO")
    Account.objects.update_or_create(user=factories.ada(), defaults={"tier": "PRO"})
    begun = begin(1, 2, 3)
    for number in begun:
        answering.reaches(number)
    assert set(statuses(begun).values()) == {"running"}
    for number, turn in begun.items():
        answering.give(number)
        ended(turn.pk)


# --- nothing is lost ---------------------------------------------------------------------------------


def age(**fields: str) -> None:
    """Let queued turns have been sent long ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE copilot_turn SET dispatched_at = now() - interval '1 hour' WHERE status = 'queued'"
        )


def test_the_sweep_starts_a_waiting_turn_whose_wake_up_was_lost(answering, rig):
    allow(1)
    begun = begin(1, 2)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 1)
    rig.hold_tasks()
    answering.give(1)
    ended(begun[1].pk)
    rig.run_tasks()
    age()
    assert recovery.resend_queued_turns() == 1
    answering.reaches(2)
    answering.give(2)
    assert ended(begun[2].pk).status == "succeeded"


def test_the_sweep_leaves_waiting_turns_alone_while_there_is_no_room(answering):
    """Thousands may wait for a cap: they must not hide those whose task was lost."""
    allow(1)
    begin(1, 2, 3)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 2)
    age()
    assert recovery.resend_queued_turns() == 0
    for number in (1, 2, 3):
        answering.give(number)
    until(lambda: not Turn.objects.filter(status__in=Turn.UNFINISHED).exists())


def test_a_raised_cap_starts_what_waits(answering):
    allow(1)
    begin(1, 2, 3)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 2)
    allow(3)
    age()
    assert recovery.resend_queued_turns() == 2
    answering.reaches(2)
    answering.reaches(3)
    for number in (1, 2, 3):
        answering.give(number)
    until(lambda: not Turn.objects.filter(status__in=Turn.UNFINISHED).exists())


def test_turns_that_wait_survive_the_worker_that_ran_the_others(answering, rig):
    allow(2)
    begun = begin(1, 2, 3, 4, 5)
    answering.reaches(1)
    answering.reaches(2)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 3)
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 2)
    for number in (1, 2, 3, 4, 5):
        answering.give(number)
    for turn in begun.values():
        assert ended(turn.pk).status == "succeeded"
        assert len(endings(turn.session_id, turn.pk)) == 1


def test_a_turn_at_its_cap_is_not_reported_as_stuck(answering):
    allow(1)
    begun = begin(1, 2)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 1)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE copilot_turn SET queued_at = now() - interval '20 minutes',"
            " created_at = now() - interval '20 minutes' WHERE id = %s",
            [begun[2].pk],
        )
    moment = turn_filters.judge_running_turns(Turn.objects.get(pk=begun[1].pk).attempt_started_at)
    assert not Turn.objects.filter(turn_filters.filter_stuck_queued(moment)).exists()
    for number in (1, 2):
        answering.give(number)
        ended(begun[number].pk)


# --- many claim at the same moment -------------------------------------------------------------------


def opened(session: Session) -> Turn:
    return factories.turn(session, status="queued")


@pytest.mark.django_db(transaction=True)
def test_claims_of_many_processes_together_never_pass_the_cap():
    allow(3)
    ada = factories.ada()
    ids = [opened(factories.session(ada)).pk for _ in range(12)]

    def claim(mine):
        return lambda: turns.claim_turns(mine, "worker")

    found = together(*(claim([ids[one], ids[one + 6]]) for one in range(6)))
    claimed = [turn.turn_id for result in found for turn in result.claimed]
    assert sorted(claimed) == sorted(ids[:3]), found
    assert Turn.objects.filter(status="running").count() == 3


@pytest.mark.django_db(transaction=True)
def test_ends_and_claims_together_leave_no_place_empty():
    """The last claim sees every earlier ending, and names what else may start."""
    allow(2)
    ada = factories.ada()
    rows = [opened(factories.session(ada)) for _ in range(5)]
    ids = [row.pk for row in rows]
    first = turns.claim_turns(ids, "worker")
    assert [len(first.claimed), len(first.throttled)] == [2, 3]
    for turn in first.claimed:
        turn_transitions.end_turn(turn.turn_id, turn.fence, turns.CANCELLED, override=True)
    second = turns.claim_turns([ids[2]], "worker")
    assert ([turn.turn_id for turn in second.claimed], second.startable) == ([ids[2]], [ids[3]])
    third = turns.claim_turns([ids[2]], "worker")  # a second wake-up of a turn that runs already
    assert (third.claimed, third.startable) == ([], [ids[3]])


# --- by address --------------------------------------------------------------------------------------


def test_turns_of_many_accounts_from_one_address_wait_in_line(answering, settings):
    settings.TURNS_AT_ONCE_PER_ADDRESS = 2
    people = [factories.user(f"account{number}") for number in range(3)]
    with bind_client_address("93.184.216.34"):
        ids = [start(factories.session(person), f"Say {place}") for place, person in enumerate(people, 1)]
    with bind_client_address("93.184.216.35"):
        elsewhere = start(factories.session(factories.bob()), "Say 7")
    for number in (1, 2, 7):
        answering.reaches(number)
    until(lambda: Turn.objects.filter(throttled_by="address").count() == 1)
    assert [status(one) for one in ids] == ["running", "running", "queued"]
    assert [event.reason for event in told(Turn.objects.get(pk=ids[2]).session_id, "turn.throttled")] == [
        "address"
    ]
    answering.give(1)
    answering.reaches(3)
    for number in (2, 3, 7):
        answering.give(number)
    assert {ended(one).status for one in [*ids, elsewhere]} == {"succeeded"}


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "fd00::1", "nonsense"]
)
def test_private_addresses_are_not_counted(address):
    """Behind a proxy that is not announced (TRUST_PROXY off) everybody has the same."""
    with bind_client_address(address):
        assert hash_client_address() is None


def test_addresses_of_one_subscriber_are_one():
    def hashed(address):
        with bind_client_address(address):
            return hash_client_address()

    assert hashed("2a00:1450:4001::1") == hashed("2a00:1450:4001:0:ffff::9")
    assert hashed("2a00:1450:4001::1") != hashed("2a00:1450:4001:1::1")
    assert hashed("93.184.216.34") == hashed("::ffff:93.184.216.34")
    assert -(2**63) <= hashed("93.184.216.34") < 2**63


# --- money -------------------------------------------------------------------------------------------

CALL = 10_100
LIMIT = 1_000_000


@pytest.fixture
def priced(rig: Rig) -> None:
    ModelPrice.objects.filter(provider="scripted").delete()
    policies.clear_policy_cache()


def spent(user: User) -> int:
    return UsageWindow.objects.get(account__user=user, kind="DAY").used_microdollars


def submit_all(sessions: list[Session]) -> list[object]:
    """All of them in flight before any has cost anything."""
    barrier = threading.Barrier(16)

    def send(part):
        barrier.wait()
        outcomes: list[object] = []
        for session in part:
            try:
                outcomes.append(say(session, "Spend"))
            except TooManyRequests as refused:
                outcomes.append(refused)
        connection.close()
        return outcomes

    with ThreadPoolExecutor(16) as pool:
        parts = pool.map(send, [sessions[place::16] for place in range(16)])
        return [outcome for part in parts for outcome in part]


@pytest.mark.attack
@pytest.mark.usefixtures("priced")
def test_three_hundred_parallel_turns_stay_under_a_limit_of_one_dollar(rig, model):
    """They used to spend three: each passed the check before any had cost anything."""
    model.always(cue(1), make_cost_report(CALL), ScriptedText("Spent."))
    sessions = [factories.session() for _ in range(300)]
    outcomes = submit_all(sessions)
    refused = [one for one in outcomes if isinstance(one, TooManyRequests)]
    accepted = [one for one in outcomes if isinstance(one, admission_outcomes.SubmissionStarted)]
    assert {one.code for one in refused} == {"limit_held"}
    assert len(refused) + len(accepted) == 300
    policy = LimitPolicy.objects.get()
    assert len(accepted) * policy.turn_hold_microdollars <= LIMIT + policy.turn_hold_microdollars
    model.give(1)
    for one in accepted:
        ended(one.turn_id)
    until(
        lambda: (
            not redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(factories.ada().pk))
        )
    )
    assert spent(factories.ada()) == len(accepted) * CALL <= LIMIT


@pytest.mark.attack
@pytest.mark.usefixtures("priced")
def test_parallel_turns_pass_a_limit_by_no_more_calls_than_run_at_once(rig, model):
    """Even where an operator has switched holds off: a turn that waited asks for its limit before its first call."""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 0})
    allow(4)
    dear = 150_000
    model.always(cue(1), make_cost_report(dear), ScriptedText("Spent."))
    accepted = submit_all([factories.session() for _ in range(32)])
    assert all(isinstance(one, admission_outcomes.SubmissionStarted) for one in accepted)
    model.give(1)
    rows = [ended(one.turn_id) for one in accepted]
    assert spent(factories.ada()) <= LIMIT + 4 * dear
    stopped = [row for row in rows if row.failure_code == "limit_reached"]
    assert len(stopped) == 32 - spent(factories.ada()) // dear
    assert len(model.requests) == spent(factories.ada()) // dear


@pytest.mark.usefixtures("priced")
def test_a_turn_whose_limit_was_used_up_while_it_waited_makes_no_call(answering):
    allow(1)
    begun = begin(1, 2)
    answering.reaches(1)
    until(lambda: Turn.objects.exclude(throttled_by="").count() == 1)
    record_usage(factories.ada(), LIMIT)
    answering.give(1)
    turn = ended(begun[2].pk)
    assert (turn.status, turn.failure_code) == ("failed", "limit_reached")
    assert notices(turn.session) == ["limit_reached"]
    assert len(answering.requests) == 1
    until(
        lambda: (
            not redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(factories.ada().pk))
        )
    )


@pytest.mark.usefixtures("priced")
def test_a_summary_that_waited_makes_no_call_beyond_the_limit(answering):
    """A turn that only shortens a conversation is bound like any other."""
    allow(1)
    long = factories.session()
    for number in (7, 8):
        answering.give(number)
        ended(start(long, f"Say {number}"))
    begin(1)
    answering.reaches(1)
    asked = compaction_requests.request_compaction(long.owner_id, long.pk)
    until(lambda: Turn.objects.filter(pk=asked.turn_id).exclude(throttled_by="").exists())
    record_usage(factories.ada(), LIMIT)
    calls = len(answering.requests)
    answering.give(1)
    assert ended(asked.turn_id).failure_code == "limit_reached"
    assert len(answering.requests) == calls


@pytest.mark.attack
def test_side_questions_hold_money_too(rig, model):
    """One runs in each session: many sessions would ask many at once."""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    model.always(cue(1), ScriptedText("Aside."))
    one, other, third = factories.session(), factories.session(), factories.session()
    for session in (one, other):
        side_questions.ask_side_question(session.owner_id, session.pk, "What?")
    with pytest.raises(TooManyRequests) as refused:
        side_questions.ask_side_question(third.owner_id, third.pk, "What?")
    assert refused.value.code == "limit_held"
    model.give(1)
    until(
        lambda: (
            not redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(factories.ada().pk))
        )
    )


def test_a_message_for_a_busy_chat_queues_though_other_turns_hold_the_rest(rig, model):
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    record_usage(factories.ada(), 500_000)
    session = factories.session()
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    assert isinstance(say(session, "And then"), admission_outcomes.SubmissionQueued)
    held = redis_counters.read_open_holds(session.owner_id)
    assert [one.hold_id for one in held] == [str(turn_id)]
    model.give(1)
    ended(turn_id)


def test_a_start_asks_redis_for_money_once(rig, model, monkeypatch):
    """Check and hold are one script: holds cost a start no further round trip."""
    sent = []
    starter = threading.current_thread()
    client = redis_counters.get_redis_client()
    execute = client.execute_command
    say(factories.session(), "Warm up")

    def noting(name, *args, **options):
        if (
            threading.current_thread() is starter
        ):  # the worker may still be letting go of the first one's hold
            sent.append(name)
        return execute(name, *args, **options)

    monkeypatch.setattr(client, "execute_command", noting)
    rig.hold_tasks()
    start(factories.session(), "Hello")
    assert sent == ["EVALSHA"]
