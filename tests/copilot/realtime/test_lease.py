"""The lease and the queue behind it: each act one script, decided by Redis alone (T3.4, T4)."""

from __future__ import annotations

import pytest

from config.core.db import run_in_thread
from config.core.redis import get_redis
from copilot.realtime import lease, redis_keys, worker_signals
from copilot.realtime.lease import HeldLease, QueuedBehindTurn, QueueFull, QueueMember, SessionClaimed
from tests.support.turn_engine import together

S = "session"


@pytest.fixture(autouse=True)
def _clean(redis_clean):
    return redis_clean


def claim(turn="t1", token="one", number=1, run=False, order=None):
    member = QueueMember(number, run, f"m{number}")
    return lease.claim_or_queue(
        S, turn_id=turn, token=token, member=member, order=float(number) if order is None else order
    )


def letting_go(token, keep_through=None, next_turn="t9", next_token="nine"):
    return lease.release_or_keep(
        lease.SessionRelease(
            session_id=S,
            token=token,
            keep_through=keep_through,
            next_turn_id=next_turn,
            next_token=next_token,
        )
    )


def finish(*args, **kwargs):
    return letting_go(*args, **kwargs).verdict


def holder():
    value = get_redis().hget(redis_keys.lease_key(S), "token")
    return value.decode() if value else None


def test_a_free_session_is_claimed_and_a_held_one_queues():
    """T3.4"""
    assert claim() == SessionClaimed()
    assert claim("t2", "two", 2) == QueuedBehindTurn(position=1, turn_id="t1")
    assert claim("t3", "three", 3) == QueuedBehindTurn(position=2, turn_id="t1")


def test_asking_again_with_the_same_arguments_changes_nothing():
    """T3.4: a retry after a lost answer is safe"""
    assert [claim(), claim()] == [SessionClaimed(), SessionClaimed()]
    assert [claim("t2", "two", 2), claim("t2", "two", 2)] == [
        QueuedBehindTurn(1, "t1"),
        QueuedBehindTurn(1, "t1"),
    ]
    assert get_redis().zcard(redis_keys.queue_key(S)) == 1


def test_the_queue_holds_ten():
    """T11"""
    claim()
    for number in range(2, 12):
        assert isinstance(claim(f"t{number}", f"k{number}", number), QueuedBehindTurn)
    assert claim("t99", "k99", 99) == QueueFull(turn_id="t1")


def test_positions_follow_the_order_of_acceptance():
    """T6.2: a slow request finds its place in front"""
    claim()
    assert claim("t3", "three", 3) == QueuedBehindTurn(1, "t1")
    assert claim("t2", "two", 2) == QueuedBehindTurn(1, "t1")
    assert [member.accept_number for member in lease.list_members(S)] == [2, 3]


def test_of_many_claims_at_once_one_wins():
    """T3.4"""
    for number in range(20):
        get_redis().flushdb()
        answers = together(*(lambda n=n: claim(f"t{n}", f"k{n}", n) for n in range(12)))
        assert answers.count(SessionClaimed()) == 1, number
        assert sum(isinstance(answer, QueuedBehindTurn) for answer in answers) == 10
        assert sum(isinstance(answer, QueueFull) for answer in answers) == 1


def test_a_claimed_lease_does_not_expire_and_a_running_one_does():
    """T4.2"""
    claim()
    assert get_redis().ttl(redis_keys.lease_key(S)) == -1


async def test_renewal_gives_a_running_lease_thirty_seconds():
    """T4.2"""
    await run_in_thread(claim)
    assert await lease.renew_leases([HeldLease(S, "t1", "one", 5)]) == ["guarded"]
    assert await lease.renew_leases([HeldLease(S, "t1", "one", 5)]) == ["renewed"]
    assert 25 <= get_redis().ttl(redis_keys.lease_key(S)) <= 30
    assert get_redis().get(redis_keys.fence_key(S)) == b"5"


async def test_nobody_but_the_owner_renews_or_releases():
    """T4.1: decided in Lua"""
    await run_in_thread(claim)
    assert await lease.renew_leases([HeldLease(S, "t1", "thief", 5)]) == ["lost"]
    assert lease.release_lease(S, "thief") is False
    assert finish("thief") == "lost"
    assert holder() == "one"
    assert lease.release_lease(S, "one") is True
    assert holder() is None


async def test_an_older_fence_does_not_renew():
    """T4.1: its token is right, its time is over"""
    await run_in_thread(claim)
    assert lease.take_over_lease(S, turn_id="t1", token="one", fence=7) is True
    assert await lease.renew_leases([HeldLease(S, "t1", "one", 6)]) == ["lost"]
    assert await lease.renew_leases([HeldLease(S, "t1", "one", 7)]) == ["renewed"]
    assert lease.take_over_lease(S, turn_id="t1", token="one", fence=3) is False


async def test_who_renews_or_lets_go_learns_that_redis_forgot_meanwhile():
    """T2.5: what the log was told may be lost too, also where somebody else put the lease back"""
    running = HeldLease(S, "t1", "one", 5)
    await run_in_thread(claim)
    await lease.renew_leases([running])
    get_redis().flushdb()
    await run_in_thread(claim)
    assert await lease.renew_leases([running]) == ["guarded"]
    assert letting_go("one") == ("released", True)
    await run_in_thread(claim)
    assert letting_go("one") == ("released", False)
    assert letting_go("one") == ("released", False)


async def test_a_lost_lease_is_acquired_again_only_on_demand():
    """D2: the caller has read in Postgres that the turn is its own"""
    holding = HeldLease(S, "t1", "one", 4)
    assert await lease.renew_leases([holding]) == ["missing"]
    assert await lease.renew_leases([holding], recreate=True) == ["guarded"]
    assert holder() == "one"
    assert await lease.renew_leases([]) == []


async def test_all_leases_of_a_process_are_renewed_in_one_pipeline():
    """T4.2: however many"""
    holdings = [HeldLease(f"s{number}", f"t{number}", "k", 1) for number in range(50)]
    for holding in holdings[:25]:
        await run_in_thread(
            lease.claim_or_queue, holding.session_id, turn_id="t", token="k", member=None, order=0.0
        )
    assert await lease.renew_leases(holdings) == ["guarded"] * 25 + ["missing"] * 25


def test_the_last_act_releases_an_empty_queue():
    """T4.4"""
    claim()
    assert finish("one") == "released"
    assert holder() is None


def test_the_last_act_keeps_the_session_for_what_is_queued():
    """T4.4, T6.3: no moment in between"""
    claim()
    claim("t2", "two", 2)
    assert finish("one") == "kept"
    assert holder() == "nine"
    assert claim("t3", "three", 3) == QueuedBehindTurn(2, "t9")


def test_chips_do_not_keep_the_session_but_run_ids_and_later_messages_do():
    """T7.3, T7.4: by accept number, not by flag"""
    claim()
    claim("t2", "two", 2)
    assert finish("one", keep_through=2) == "released"
    claim("t3", "three", 3)
    claim("t4", "four", 4)
    assert finish("three", keep_through=3) == "kept"
    assert finish("nine", keep_through=4) == "released"
    claim("t5", "five", 5)
    claim("t6", "six", 6, run=True)
    assert finish("five", keep_through=99) == "kept"


def test_a_stop_between_two_turns_covers_what_waits():
    """T7.3"""
    claim()
    claim("t2", "two", 2)
    worker_signals.cover_queued_messages(S, 2)
    assert finish("one") == "released"


def test_an_expired_lease_does_not_strand_the_queue():
    """T4.4: the last act continues although the lease is gone, unless somebody else has the session"""
    claim()
    claim("t2", "two", 2)
    get_redis().delete(redis_keys.lease_key(S))
    assert finish("one") == "kept"
    assert finish("one", next_token="other") == "lost"


def test_mending_the_queue_adds_what_is_missing_and_drops_what_is_stale():
    """T2.5: and nothing else"""
    claim()
    claim("t2", "two", 2)
    claim("t3", "three", 3)
    lease.repair_queue(S, {QueueMember(4, True, "m4"): 4.0}, [QueueMember(2, False, "m2")])
    assert [member.accept_number for member in lease.list_members(S)] == [3, 4]


def test_who_is_admitted_is_known_only_while_redis_remembers():
    """T2.5"""
    claim()
    claim("t2", "two", 2)
    assert lease.list_admitted_ids(S) is None
    lease.mark_epoch()
    assert lease.list_admitted_ids(S) == frozenset({"m2"})


def test_leases_are_listed_for_the_sweep():
    """D10"""
    claim()
    [seen] = lease.scan_leases()
    assert (seen.session_id, seen.turn_id, seen.token) == (S, "t1", "one")
    assert 0 <= seen.claimed_seconds_ago <= 2


def test_every_key_of_a_session_lives_in_one_slot():
    """A cluster can hold them: one hash tag per session."""
    names = [
        redis_keys.lease_key(S),
        redis_keys.queue_key(S),
        redis_keys.fence_key(S),
        redis_keys.stop_key(S),
        redis_keys.stopped_through_key(S),
        redis_keys.event_log_key(S),
    ]
    assert {redis_keys.parse_session_id(name) for name in names} == {S}


def test_a_member_survives_its_text_form():
    for member in (QueueMember(1, True, "a"), QueueMember(2**60, False, "b:c")):
        assert QueueMember.parse(str(member)) == member


def test_letting_go_twice_answers_the_same():
    """T4.4: the answer may be lost on the way, and the act is repeated"""
    claim()
    claim("t2", "two", 2)
    assert [finish("one"), finish("one")] == ["kept", "kept"]
    assert holder() == "nine"
    assert finish("one", next_token="other") == "lost"
