"""When a failed model call is tried again (A7.1–A7.3)."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copilot.agent.guards import SentRequest
from copilot.agent.retry_policy import RetryBudget, RetryPolicy, RetryWait
from copilot.providers.base import FailureCode, ProviderFailure


def retries(*, chance=0.5, requests_beyond_rounds=0, before=()):
    made = RetryBudget(chance=lambda: chance, requests_beyond_rounds=requests_beyond_rounds, before=before)
    made.begin_round()
    return made


def after(made, code="overloaded", *, retry_after=None, shown=False, left=math.inf):
    made.count_request("model")
    failure = ProviderFailure(code, retry_after_seconds=retry_after)
    return made.next_wait(failure, model="model", shown=shown, seconds_left=left)


@pytest.mark.parametrize(
    ("code", "delays"),
    [
        ("overloaded", [2, 8, 20]),
        ("rate_limited", [15, 45]),
        ("no_response", [2]),
        ("malformed_stream", [2]),
    ],
)
def test_each_class_has_its_schedule(code, delays):
    """A7.1"""
    made = retries()
    waits = [after(made, code) for _ in delays]
    assert waits == [
        RetryWait(delay_seconds=delay, attempt=number, attempts=len(delays))
        for number, delay in enumerate(delays, start=1)
    ]
    assert after(made, code) is None


@pytest.mark.parametrize(
    "code",
    sorted(set(get_args(FailureCode)) - {"overloaded", "rate_limited", "no_response", "malformed_stream"}),
)
def test_other_classes_stand_at_once(code):
    assert after(retries(), code) is None


@given(st.floats(min_value=0, max_value=1))
def test_jitter_moves_a_delay_by_a_quarter_at_most(chance):
    """A7.c1"""
    assert 1.5 <= after(retries(chance=chance)).delay_seconds <= 2.5


def test_retry_after_is_waited_exactly_and_a_long_one_not_at_all():
    """A7.c1"""
    assert after(retries(chance=0), "rate_limited", retry_after=20).delay_seconds == 20
    assert after(retries(), "rate_limited", retry_after=60).delay_seconds == 60
    assert after(retries(), "rate_limited", retry_after=300) is None
    assert after(retries(), "overloaded", retry_after=-3).delay_seconds == 0


def test_what_was_shown_is_taken_back_once_per_round():
    """A7.3"""
    made = retries()
    assert after(made, shown=True)
    assert after(made, shown=True) is None
    assert after(made, shown=False)
    made.begin_round()
    assert after(made, shown=True)


def test_a_wait_that_would_pass_the_wall_clock_is_not_begun():
    """A7.2"""
    assert after(retries(), left=2.0) is None
    assert after(retries(), left=2.1)


def test_a_round_waits_120_seconds_at_most_and_a_turn_300():
    """A7.2"""
    made = retries()
    assert after(made, "rate_limited", retry_after=60)
    assert after(made, "rate_limited", retry_after=60)
    assert after(made, "overloaded", retry_after=1) is None
    waited = 120.0
    for _ in range(9):
        made.begin_round()
        wait = after(made, "rate_limited", retry_after=60)
        waited += wait.delay_seconds if wait else 0
    assert waited == 300


@given(
    st.lists(st.tuples(st.sampled_from(get_args(FailureCode)), st.booleans(), st.booleans()), max_size=400)
)
def test_no_sequence_of_failures_sends_more_than_the_bounds_allow(failures):
    """A33.c4, A7.2: a round continues only by a wait, a turn only by rounds."""
    made, policy, max_rounds = retries(), RetryPolicy(), 30
    requests, in_round, round_number = 0, 0, 1
    for code, shown, answered in failures:
        requests, in_round = requests + 1, in_round + 1
        if after(made, code, shown=shown, retry_after=0) and not answered:
            continue
        assert in_round <= policy.requests_per_model_and_round
        if round_number == max_rounds:
            break
        made.begin_round()
        round_number, in_round = round_number + 1, 0
    assert requests <= max_rounds + policy.requests_beyond_rounds


def test_what_earlier_runs_of_the_turn_sent_counts():
    """A7.2 after a takeover"""
    assert after(retries(requests_beyond_rounds=19))
    assert after(retries(requests_beyond_rounds=20)) is None


def test_waits_of_earlier_runs_count_in_the_turn_and_in_the_continued_round():
    """A7.2, A3.9: 300 s a turn, 120 s a round; what is never tried again was not waited for"""
    made = retries(before=[SentRequest(model="model", failure="rate_limited", seconds_to_next=60)] * 4)
    assert after(made, retry_after=60)
    assert after(made, retry_after=1) is None
    made = retries(
        before=[SentRequest(model="other", failure="overloaded", seconds_to_next=60, in_round=True)] * 2
    )
    assert after(made, retry_after=1) is None
    made.begin_round()
    assert after(made, retry_after=1)
    assert after(retries(before=[SentRequest(model="model", failure="bad_request", seconds_to_next=60)] * 6))


def test_time_without_a_worker_is_not_counted_as_waiting():
    """A7.2: a turn whose workers were all away for an hour has waited once"""
    assert after(retries(before=[SentRequest(model="model", failure="overloaded", seconds_to_next=3_600)]))


def test_requests_of_the_continued_round_count():
    """A7.2: six per model and round"""
    assert after(retries(before=[SentRequest(model="model", in_round=True)] * 4))
    assert after(retries(before=[SentRequest(model="model", in_round=True)] * 5)) is None


def test_another_model_has_schedules_of_its_own_and_the_round_its_one_retraction():
    """A7.1, A7.3, A7.6"""
    made = retries()
    assert [after(made, "no_response") is None for _ in range(2)] == [False, True]
    made.count_request("other")
    assert made.next_wait(ProviderFailure("no_response"), model="other", shown=True, seconds_left=math.inf)
    assert not made.can_switch(shown=True)
    assert made.can_switch(shown=False)


@given(st.lists(st.sampled_from(["heal", "switch", "wait"]), max_size=60))
def test_healings_and_switches_keep_the_bounds_too(acts):
    """A33.c4, A7.2"""
    made, policy, model, sent = retries(), RetryPolicy(), 0, [1]
    made.count_request("0")
    for act in acts:
        if act == "wait":
            failure = ProviderFailure("overloaded", retry_after_seconds=0)
            again = made.next_wait(failure, model=str(model), shown=False, seconds_left=math.inf) is not None
        else:
            again = made.can_send(str(model), shown=False) if act == "heal" else made.can_switch(shown=False)
            if again:
                made.spend_request(shown=False)
                model, sent = (model, sent) if act == "heal" else (model + 1, [*sent, 0])
        if again:
            made.count_request(str(model))
            sent[-1] += 1
    assert max(sent) <= policy.requests_per_model_and_round
    assert sum(sent) <= policy.requests_per_round


def test_a_turn_out_of_requests_is_exhausted_in_every_round():
    """A7.2"""
    made = retries(requests_beyond_rounds=19)
    made.spend_request(shown=False)
    made.begin_round()
    assert made.is_exhausted
    assert not made.can_send("model", shown=False)
    assert not made.can_switch(shown=False)
