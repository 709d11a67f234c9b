"""What a turn has used up of its limits counts in its next run too, after a lost worker as after a hand-over (A3.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copilot.agent.tool_runs import MIN_REPEATED_OUTPUT_CHARACTERS
from copilot.chat import stop
from copilot.models import Message, ModelCall
from copilot.providers import catalogue
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedText,
    ScriptedUsage,
)
from copilot.realtime.payloads import Tokens
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import Errand, add_tools, cue, ended, notices, shown, start, told, until

WINDOW = 100_000
NEARLY_FULL = Tokens(input=85_000, output=100)


@pytest.fixture
def session(rig):
    return factories.session()


def lose_worker(rig):
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)


def calls_have_ended(turn_id, number):
    """Their rows are whole: recording is off the turn's path."""
    until(lambda: ModelCall.objects.filter(turn=turn_id, ended_at__isnull=False).count() == number)


def goes_on_in_its_circle(rig, session, model, turn_id):
    """Another worker's rounds are like the first one's: the sixth ends the turn."""
    model.will(ScriptedCall("look"))
    model.will(ScriptedCall("look"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert (ended(turn_id).status, notices(session)) == ("failed", ["loop_detected"])
    told_to_change = Message.objects.filter(turn=turn_id, kind="note", content__contains="same calls")
    assert told_to_change.count() == 1


def test_a_turn_that_goes_in_circles_does_so_across_its_runs(rig, session, model, monkeypatch):
    """A10.2: the sixth equal round ends the turn, also if other runs made the first four; the model is warned once"""
    add_tools(monkeypatch, Errand("look"))
    for _ in range(4):
        model.will(ScriptedCall("look"))
    model.will(cue(1), ScriptedCall("look"))
    turn_id = start(session)
    model.reaches(1)
    goes_on_in_its_circle(rig, session, model, turn_id)


def test_broken_calls_in_a_row_are_counted_across_runs(rig, session, model, monkeypatch):
    """A10.3: five"""
    add_tools(monkeypatch, Errand("look"))
    for _ in range(3):
        model.will(ScriptedCall("look", "{"))
    model.will(cue(1), ScriptedCall("look", "{"))
    turn_id = start(session)
    model.reaches(1)
    for _ in range(2):
        model.will(ScriptedCall("look", "{"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert (ended(turn_id).status, notices(session)) == ("failed", ["tool_calls_broken"])


def test_a_remedy_that_an_earlier_run_tried_holds_and_is_not_tried_again(rig, session, model):
    """A7.4: each kind once per turn and model"""
    model.will(ScriptedFailure("thinking_unsupported"))
    model.will(cue(1), ScriptedText("Half"))
    turn_id = start(session)
    model.reaches(1)
    calls_have_ended(turn_id, 1)
    until(lambda: told(session.pk, "model.healed"))
    model.will(ScriptedFailure("thinking_unsupported"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert ended(turn_id).failure_code == "thinking_unsupported"
    assert len(model.requests) == 3
    assert len(told(session.pk, "model.healed")) == 1


def test_attempts_of_the_continued_round_count(rig, session, model, settings):
    """A7.1, A7.2: a schedule of two has no third attempt, also if another run made the first"""
    settings.RETRY_TRANSIENT_SECONDS = [0, 0]
    model.will(ScriptedFailure("overloaded"))
    model.will(ScriptedFailure("overloaded"))
    model.will(cue(1), ScriptedText("Half"))
    turn_id = start(session)
    model.reaches(1)
    calls_have_ended(turn_id, 2)
    model.will(ScriptedFailure("overloaded"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert ended(turn_id).failure_code == "overloaded"
    assert len(model.requests) == 4


@pytest.mark.parametrize("shown", [ScriptedText("Half"), ScriptedCall("look")])
def test_a_round_retracts_text_once_over_all_its_runs(rig, session, model, settings, shown):
    """A7.3: at most one retraction per round; of words as of calls, which leave no row"""
    settings.RETRY_TRANSIENT_SECONDS = [0, 0, 0]
    model.will(shown, ScriptedFailure("overloaded"))
    model.will(cue(1), ScriptedText("Cut off."))
    turn_id = start(session)
    model.reaches(1)
    calls_have_ended(turn_id, 1)
    model.will(shown, ScriptedFailure("overloaded"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert ended(turn_id).failure_code == "overloaded"
    assert len(told(session.pk, "step.retracted")) == 1


def test_the_next_round_may_take_back_again_after_a_lost_worker(rig, session, model, settings, monkeypatch):
    """A7.3: per round"""
    settings.RETRY_TRANSIENT_SECONDS = [0, 0, 0]
    add_tools(monkeypatch, Errand("look"))
    model.will(ScriptedText("Half"), ScriptedFailure("overloaded"))
    model.will(ScriptedCall("look"))
    model.will(cue(1), ScriptedText("Cut off."))
    turn_id = start(session)
    model.reaches(1)
    calls_have_ended(turn_id, 2)
    model.will(ScriptedText("Half"), ScriptedFailure("overloaded"))
    model.will(ScriptedText("Said."))
    lose_worker(rig)
    assert ended(turn_id).status == "succeeded"
    assert len(told(session.pk, "step.retracted")) == 2


@pytest.fixture
def small_window(rig):
    """A summary is due when a reply says that it has nearly filled the demo model's window."""
    demo = replace(catalogue.DEMO_ENTRY, context_window=WINDOW)
    before = catalogue.get_catalogue()
    catalogue.set_catalogue(
        catalogue.Catalogue(entries=(demo,), tiers=dict.fromkeys(catalogue.TIERS, (demo,)))
    )
    yield
    catalogue.set_catalogue(before)


def test_what_is_taken_back_for_a_full_window_counts_as_well(rig, session, model, settings, small_window):
    """A7.3, A7.5: the model said so at the end of a reply that people saw"""
    settings.RETRY_TRANSIENT_SECONDS = [0, 0, 0]
    model.will(ScriptedText("Half"), ScriptedFinish("overflow"))
    model.will(ScriptedText("All that was said."))
    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    calls_have_ended(turn_id, 2)
    assert len(told(session.pk, "step.retracted")) == 1
    model.will(ScriptedText("Half"), ScriptedFailure("overloaded"))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert ended(turn_id).failure_code == "overloaded"


def test_equal_rounds_that_a_summary_has_swallowed_count_after_a_lost_worker(
    rig, session, model, monkeypatch, small_window
):
    """A10.2, A17.3: the turn continues as one, for those who watch it too"""
    add_tools(monkeypatch, Errand("look"))
    for _ in range(3):
        model.will(ScriptedCall("look"))
    model.will(ScriptedCall("look"), ScriptedUsage(NEARLY_FULL))
    model.will(ScriptedText("They looked four times."))
    model.will(cue(1), ScriptedCall("look"))
    turn_id = start(session)
    model.reaches(1)
    goes_on_in_its_circle(rig, session, model, turn_id)


def test_rounds_of_earlier_turns_do_not_count_as_a_loop(rig, session, model, monkeypatch, small_window):
    """A10.2: nor are they read"""
    add_tools(monkeypatch, Errand("look"))
    for _ in range(4):
        model.will(ScriptedCall("look"))
    model.will(ScriptedText("Four times."), ScriptedUsage(NEARLY_FULL))
    ended(start(session))
    model.will(ScriptedText("They looked four times."))
    for _ in range(2):
        model.will(ScriptedCall("look"))
    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    model.will(ScriptedCall("look"))
    model.will(ScriptedText("Three times."))
    lose_worker(rig)
    assert (ended(turn_id).status, notices(session)) == ("succeeded", [])


def test_the_second_try_of_a_summary_is_no_second_summary(rig, session, model, monkeypatch, small_window):
    """A17.2, A17.7: three per turn, each of which may be tried twice"""
    add_tools(monkeypatch, Errand("look"))
    for round_number in range(2):
        model.will(ScriptedCall("look", {"note": str(round_number)}), ScriptedUsage(NEARLY_FULL))
        model.will(ScriptedFailure("context_overflow"))
        model.will(ScriptedText("Shorter."))
    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    model.will(ScriptedCall("look", {"note": "2"}), ScriptedUsage(NEARLY_FULL))
    model.will(ScriptedText("Shortest."))
    model.will(ScriptedText("Done."))
    lose_worker(rig)
    assert ended(turn_id).status == "succeeded"
    assert ModelCall.objects.filter(turn=turn_id, purpose="compaction").count() == 5
    assert Message.objects.filter(turn=turn_id, kind="summary").count() == 3


def test_tools_of_an_earlier_turn_make_no_answer_of_silence(rig, session, model, settings, monkeypatch):
    """A2.5, A14.7: a turn that was taken over before its first words has run none itself"""
    settings.RETRY_BROKEN_SECONDS = []
    add_tools(monkeypatch, Errand("look"))
    model.will(ScriptedCall("look"))
    model.will(cue(1))
    first = start(session)
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    assert ended(first).status == "cancelled"
    model.will(cue(2))
    turn_id = start(session)
    model.reaches(2)
    model.will(ScriptedFinish("stop"))
    lose_worker(rig)
    assert ended(turn_id).failure_code == "no_response"


@pytest.mark.parametrize(
    ("rounds", "said", "status"), [(1, False, "failed"), (3, True, "succeeded"), (3, False, "failed")]
)
def test_a_limit_after_a_lost_worker_asks_what_this_turn_has_said(
    rig, session, model, settings, monkeypatch, rounds, said, status
):
    """A10.6: in whichever of its rounds; what an earlier turn answered is no answer of this one"""
    add_tools(monkeypatch, Errand("look"))
    ended(start(session))
    settings.TURN_MAX_ROUNDS = rounds
    for number in range(1, rounds):
        model.will(
            *([ScriptedText("Looking.")] if said and number == 1 else []),
            ScriptedCall("look", {"note": str(number)}),
        )
    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    model.will(ScriptedCall("look"))
    lose_worker(rig)
    turn = ended(turn_id)
    assert (turn.status, notices(session)) == (status, ["round_limit"])


def test_circles_are_seen_though_equal_outputs_are_only_pointed_at(rig, session, model, monkeypatch):
    """A10.2, A9.8: the row of a long output that came before holds a pointer instead"""
    look = Errand("look")
    add_tools(monkeypatch, look)
    note = "x" * MIN_REPEATED_OUTPUT_CHARACTERS
    for _ in range(4):
        model.will(ScriptedCall("look", {"note": note}))
    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    for _ in range(2):
        model.will(ScriptedCall("look", {"note": note}))
    model.will(ScriptedText("Never said."))
    lose_worker(rig)
    assert (ended(turn_id).status, notices(session)) == ("failed", ["loop_detected"])


def test_a_text_whose_next_try_failed_is_no_answer_for_the_worker_after_that(rig, session, model, settings):
    """T9.1, A3.9: the step of a failed try is finished, too, but not with a reply"""
    settings.RETRY_TRANSIENT_SECONDS = [60]
    model.will(ScriptedText("Half a sen"), cue(1))
    turn_id = start(session)
    until(lambda: shown(session) == "Half a sen")
    model.will(ScriptedText("tence"), ScriptedFailure("overloaded"))
    lose_worker(rig)
    until(lambda: told(session.pk, "model.retrying"))
    model.will(ScriptedText(" is whole."))
    lose_worker(rig)
    assert ended(turn_id).status == "succeeded"
    assert (shown(session), len(model.requests)) == ("Half a sentence is whole.", 3)
