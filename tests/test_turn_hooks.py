"""TURN_HOOKS: other apps are told that a turn started or ended, after commit, and nobody pays for it who need not."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection, transaction

from copilot.chat import stop, turn_details, turn_hooks, turn_transitions, turns
from copilot.models import Turn
from linking.checks import check_turn_hooks
from tests import make
from tests.engine import *  # noqa: F403
from tests.engine import ended, queue, start, until

heard: list[tuple[UUID, str]] = []


def note(turn_id: UUID) -> None:
    heard.append((turn_id, Turn.objects.get(pk=turn_id).status))


def stumble(turn_id: UUID) -> None:
    raise ValueError("a hook's own fault")


@pytest.fixture
def hooked(settings):
    heard.clear()
    settings.TURN_HOOKS = [f"{__name__}.stumble", f"{__name__}.note"]


def test_a_turn_is_told_when_it_started_and_once_its_cost_is_known(rig, hooked, caplog):
    """A hook that fails is logged, and stops neither the turn nor the other hooks"""
    turn_id = start(make.session(), origin="schedule")
    ended(turn_id)
    until(lambda: len(heard) == 2)
    assert [one for one, _ in heard] == [turn_id, turn_id]
    assert heard[1][1] == "succeeded"
    assert "a hook's own fault" in caplog.text


def test_turns_of_our_own_pages_are_told_to_nobody(rig, hooked, settings):
    ended(start(make.session()))
    assert not heard
    settings.TURN_HOOKS = []
    assert not turn_hooks.has_turn_hooks("schedule")


def test_a_message_that_leaves_the_queue_is_told_as_an_ended_turn(rig, model, hooked):
    model.will(cue(1))  # noqa: F405
    session = make.session()
    running = start(session, origin="schedule")
    model.reaches(1)
    queue(session, "later", origin="schedule", run_id="r1")
    stop.stop_session(session.owner_id, session.pk, queue="drop")
    ended(running)
    until(lambda: len([one for one in heard if one[1] == "cancelled"]) >= 2)


def test_a_hook_is_called_for_the_moves_that_it_names(rig, hooked, settings):
    """P7: what concerns an ending alone costs a start nothing"""
    settings.TURN_HOOKS = [f"{__name__}.note:ended"]
    turn_id = start(make.session(), origin="schedule")
    ended(turn_id)
    until(lambda: heard)
    assert heard == [(turn_id, "succeeded")]
    settings.TURN_HOOKS = [f"{__name__}.note:finished", f"{__name__}.nobody"]
    assert [found.id for found in check_turn_hooks(None)] == ["linking.E004", "linking.E004"]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_told_of_an_ending_that_is_rolled_back(hooked):
    turn = make.turn(make.session(), "running", origin="schedule")
    with transaction.atomic():
        turn_transitions.end_turn(turn.pk, turn.fence, turns.CANCELLED, reason="user")
        transaction.set_rollback(True)
    assert not heard
    turn_transitions.end_turn(turn.pk, turn.fence, turns.CANCELLED, reason="user")
    assert heard == [(turn.pk, "cancelled")]
    assert not connection.in_atomic_block


@pytest.mark.django_db
def test_another_app_learns_whose_a_turn_is_and_what_became_of_a_message():
    session = make.session()
    turn = make.turn(session, "succeeded", origin="schedule", run_ids=["r1"])
    make.message(session, turn=turn, run_id="r1", content="hello")
    make.pending(session, "later", run_id="r2")
    known = turn_details.get_turn_details(turn.pk)
    assert known is not None
    assert (known.owner_id, known.run_ids, known.has_ended) == (session.owner_id, ("r1",), True)
    assert turn_details.find_turn_of_run(session.pk, "r1") == turn.pk
    assert turn_details.find_turn_of_run(session.pk, "r2") == "waiting"
    assert turn_details.find_turn_of_run(session.pk, "r3") == "gone"
    assert turn_details.get_cost_microdollars(turn.pk) == 0
