"""Messages that meet: many at once, at the very end of a turn, and with the same run_id (T3, T12, A13.c3)."""

from __future__ import annotations

import functools

import pytest

from config.core import rate_limits
from config.core.errors import Conflict, TooManyRequests
from config.core.redis import get_redis
from copilot.chat import admission_outcomes
from copilot.models import Message, Turn
from copilot.providers.scripted import ScriptedText
from copilot.realtime import lease
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import (
    assert_same_page,
    cue,
    ended,
    endings,
    folded,
    fresh,
    lease_of,
    quiet,
    said,
    say,
    start,
    together,
    until,
    waiting,
)


def accepted(outcomes):
    return [
        one
        for one in outcomes
        if isinstance(one, admission_outcomes.SubmissionStarted | admission_outcomes.SubmissionQueued)
    ]


@pytest.mark.parametrize("round", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3))])
def test_of_fifty_senders_one_starts_at_most_ten_queue_and_the_rest_are_refused(rig, model, round):
    """T12: and every accepted text is in the transcript exactly once, in accept order"""
    session = factories.session()
    model.will(cue(1), ScriptedText("One moment."))
    outcomes = together(*(functools.partial(say, session, f"Sender {number}") for number in range(50)))
    started = [one for one in outcomes if isinstance(one, admission_outcomes.SubmissionStarted)]
    queued = [one for one in outcomes if isinstance(one, admission_outcomes.SubmissionQueued)]
    refused = [one for one in outcomes if isinstance(one, TooManyRequests)]
    assert len(started) + len(queued) + len(refused) == 50, outcomes
    assert len(started) == 1
    assert 1 <= len(queued) <= 10 + len(said(session))
    assert {one.code for one in refused} <= {"queue_full", "too_many_requests"}
    model.give(1)
    until(lambda: not waiting(session))
    quiet(session)
    accept_order = Message.objects.filter(pk__in=[one.message_id for one in started + queued])
    expected = list(accept_order.order_by("accept_number").values_list("content", flat=True))
    assert sorted(said(session)) == sorted(expected)
    assert len(set(said(session))) == len(expected)
    starter = Message.objects.get(pk=started[0].message_id).content
    assert [text for text in said(session) if text != starter] == [
        text for text in expected if text != starter
    ]
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))


@pytest.mark.parametrize(("talkers", "messages"), [(8, 12), pytest.param(20, 50, marks=pytest.mark.slow)])
def test_a_message_accepted_while_a_turn_ends_is_always_answered(rig, model, talkers, messages):
    """T12, T3.4, A13.c3: the race at the end, a thousand times over twenty sessions"""
    sessions = [factories.session(factories.user(f"sailor{number}")) for number in range(talkers)]

    def converse(session):
        for number in range(messages):
            get_redis().delete(
                rate_limits.rate_limit_key("queue", str(session.owner_id))
            )  # T3.7 would slow the race down
            outcome = say(session, f"Message {number}")
            turn_id = outcome.turn_id
            # The row of a turn that was named to us may still be on its way.
            named = Turn.objects.filter(pk=turn_id).values_list("status", flat=True)
            while (
                named.all().first() not in Turn.ENDINGS
                and not Message.objects.filter(pk=outcome.message_id, sequence__isnull=False).exists()
            ):
                pass

    answers = together(*(functools.partial(converse, session) for session in sessions))
    assert [one for one in answers if one is not None] == []
    for session in sessions:
        until(lambda: not waiting(session))
        quiet(session)
        assert said(session) == [f"Message {number}" for number in range(messages)]
        assert lease_of(session) == {}
        assert len(endings(session.pk)) == Turn.objects.filter(session=session).count()


@rounds(6, 20)
def test_concurrent_requests_with_one_run_id_are_one_message(rig, model, rounds):
    """T3.6"""
    for number in range(rounds):
        session = factories.session()
        outcomes = together(
            *(functools.partial(say, session, "Once", run_id=f"run-{number}") for _ in range(6))
        )
        assert len({one.message_id for one in outcomes}) == 1, outcomes
        quiet(session)
        assert said(session) == ["Once"]


def test_concurrent_requests_with_one_run_id_and_other_texts_conflict(rig):
    """T3.6: 409"""
    session = factories.session()
    outcomes = together(*(functools.partial(say, session, f"Text {n}", run_id="run") for n in range(6)))
    assert len(accepted(outcomes)) == 1
    conflicts = [one for one in outcomes if isinstance(one, Conflict)]
    assert [one.code for one in conflicts] == ["idempotency_conflict"] * 5


def test_messages_with_run_ids_that_race_each_get_their_own_turn(rig, model):
    """T3.6: one ending each"""
    session = factories.session()
    outcomes = together(*(functools.partial(say, session, f"Text {n}", run_id=f"run-{n}") for n in range(8)))
    assert len(accepted(outcomes)) == 8, outcomes
    until(lambda: len(said(session)) == 8)
    quiet(session)
    told = Turn.objects.filter(session=session).values_list("run_ids", flat=True)
    assert sorted(run_id for run_ids in told for run_id in run_ids) == [f"run-{n}" for n in range(8)]
    assert len(endings(session.pk)) == 8


@rounds(8, 30)
def test_the_queue_is_mended_without_forgetting_who_comes_meanwhile(rig, model, rounds):
    """T3.4: a member whose message was taken is dropped, and no other"""
    session = factories.session()
    model.will(cue(1), ScriptedText("Aye."))
    turn_id = start(session)
    stale = lease.QueueMember(1, True, "00000000-0000-4000-8000-000000000000")
    lease.reorder_members(str(session.pk), {stale: 1.0})
    model.give(1)
    ended(turn_id)
    quiet(session)
    for number in range(rounds):
        get_redis().delete(rate_limits.rate_limit_key("queue", str(session.owner_id)))
        lease.reorder_members(str(session.pk), {stale: 1.0})
        outcome = say(session, f"Race {number}")
        lease.reorder_members(str(session.pk), {stale: 1.0})
        ended(outcome.turn_id)
        answers = together(
            lambda: say(session, f"Meanwhile {number}"), lambda: say(session, f"Also {number}")
        )
        assert len(accepted(answers)) == 2, answers
        until(lambda: len(said(session)) == 1 + 3 * (number + 1))
        quiet(session)
