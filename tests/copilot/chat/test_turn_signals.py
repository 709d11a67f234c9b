"""Signals of turns: other apps learn that a turn started, waits or ended, after the commit; our own pages pay nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection, transaction

from copilot import signals
from copilot.chat import stop, turn_details, turn_transitions, turns
from copilot.models import Turn
from tests.support import factories
from tests.support.signal_receivers import receiving
from tests.support.turn_engine import cue, ended, queue, start, until

heard: list[tuple[UUID, str]] = []


def note(turn_id: UUID, **_signal: object) -> None:
    heard.append((turn_id, Turn.objects.get(pk=turn_id).status))


def stumble(**_signal: object) -> None:
    raise ValueError("a receiver's own fault")


@pytest.fixture
def hooked():
    heard.clear()
    with (
        receiving(signals.turn_started, stumble, note),
        receiving(signals.turn_ended, stumble, note),
    ):
        yield


def test_a_turn_is_signalled_when_it_started_and_once_its_cost_is_known(rig, hooked, caplog):
    """A receiver that fails is logged, and stops neither the turn nor the other receivers"""
    turn_id = start(factories.session(), origin="schedule")
    ended(turn_id)
    until(lambda: len(heard) == 2)
    assert [one for one, _ in heard] == [turn_id, turn_id]
    assert heard[1][1] == "succeeded"
    assert "a receiver's own fault" in caplog.text


def test_turns_of_our_own_pages_send_no_signals(rig, hooked):
    ended(start(factories.session()))
    ended(start(factories.session(), origin="api"))
    assert not heard
    assert not signals.concerns_other_apps("web")
    assert signals.concerns_other_apps("schedule")


def test_a_message_that_leaves_the_queue_is_reported_as_an_ended_turn(rig, model, hooked):
    model.will(cue(1))
    session = factories.session()
    running = start(session, origin="schedule")
    model.reaches(1)
    queue(session, "later", origin="schedule", run_id="r1")
    stop.stop_session(session.owner_id, session.pk, queue="drop")
    ended(running)
    until(lambda: len([one for one in heard if one[1] == "cancelled"]) >= 2)


def test_a_receiver_of_endings_is_not_called_at_a_start(rig):
    """P7: what concerns an ending alone costs a start nothing"""
    heard.clear()
    with receiving(signals.turn_ended, note):
        turn_id = start(factories.session(), origin="schedule")
        ended(turn_id)
        until(lambda: heard)
    assert heard == [(turn_id, "succeeded")]


@pytest.mark.django_db(transaction=True)
def test_an_ending_that_is_rolled_back_sends_no_signal(hooked):
    turn = factories.turn(factories.session(), "running", origin="schedule")
    with transaction.atomic():
        turn_transitions.end_turn(turn.pk, turn.fence, turns.CANCELLED, reason="user")
        transaction.set_rollback(True)
    assert not heard
    turn_transitions.end_turn(turn.pk, turn.fence, turns.CANCELLED, reason="user")
    assert heard == [(turn.pk, "cancelled")]
    assert not connection.in_atomic_block


@pytest.mark.django_db
def test_another_app_learns_whose_a_turn_is_and_what_became_of_a_message():
    session = factories.session()
    turn = factories.turn(session, "succeeded", origin="schedule", run_ids=["r1"])
    factories.message(session, turn=turn, run_id="r1", content="hello")
    factories.pending(session, "later", run_id="r2")
    known = turn_details.get_turn_details(turn.pk)
    assert known is not None
    assert (known.owner_id, known.run_ids, known.has_ended) == (session.owner_id, ("r1",), True)
    assert turn_details.find_turn_of_run(session.pk, "r1") == turn.pk
    assert turn_details.find_turn_of_run(session.pk, "r2") == "waiting"
    assert turn_details.find_turn_of_run(session.pk, "r3") == "gone"
    assert turn_details.get_cost_microdollars(turn.pk) == 0
