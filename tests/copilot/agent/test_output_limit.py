"""A text that the model's output limit cuts continues in its row: told, stored, stopped and taken over like any other (A2.4)."""

from __future__ import annotations

from copilot.chat import stop
from copilot.models import Message, ModelCall
from copilot.providers.scripted import ScriptedFinish, ScriptedText
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import (
    answer,
    cue,
    ended,
    folded,
    fresh,
    notices,
    quiet,
    rows_of,
    start,
    told,
    until,
)


def test_a_cut_text_and_its_rest_are_one_row_for_everybody(rig, model):
    """A2.4: who followed it, who reloads, and the model's next request read the same"""
    session = factories.session()
    before = fresh(session)
    model.will(ScriptedText("Once up"), ScriptedFinish("length"))
    model.will(ScriptedText("on a time."))
    turn = ended(start(session))
    quiet(session)
    assert (turn.status, answer(turn.pk), notices(session)) == ("succeeded", "Once upon a time.", [])
    assert rows_of(folded(before, session)) == rows_of(fresh(session))
    assert len(told(session.pk, "step.started")) == len(told(session.pk, "text.started")) == 1
    assert ModelCall.objects.filter(turn=turn.pk, purpose="reply", aborted=False).count() == 2
    ended(start(session, "And then?"))
    said = [message.text for message in model.requests[-1].messages]
    assert said[1] == "Once upon a time."
    assert not any("output limit" in text for text in said)


def test_a_stop_in_the_rest_of_a_cut_text_keeps_all_of_it(rig, model):
    """A2.4, A3.5"""
    session = factories.session()
    model.will(ScriptedText("Once up"), ScriptedFinish("length"))
    model.will(ScriptedText("on"), cue(1), ScriptedText(" never"))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: len(told(session.pk, "text.extended")) == 2)
    stop.stop_session(session.owner_id, session.pk)
    turn = ended(turn_id)
    assert (turn.status, answer(turn_id), notices(session)) == ("cancelled", "Once upon", ["stopped"])
    assert not Message.objects.filter(session=session, streaming=True).exists()


def cut_and_going_on(session, model):
    """A turn whose text was cut, that call's row whole, and a word of the rest told."""
    model.will(ScriptedText("Once up"), ScriptedFinish("length"))
    model.will(ScriptedText("on"), cue(1), ScriptedText(" never"))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: len(told(session.pk, "text.extended")) == 2)
    until(lambda: ModelCall.objects.filter(turn=turn_id, ended_at__isnull=False).count() == 1)
    return turn_id


def test_a_worker_lost_in_the_rest_of_a_cut_text_is_gone_on_from_there(rig, model):
    """A2.4, A3.9, A19.5: and the call that was lost with it is paid for"""
    session = factories.session()
    turn_id = cut_and_going_on(session, model)
    model.will(ScriptedText(" a time."))
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    quiet(session)
    assert (turn.status, answer(turn_id)) == ("succeeded", "Once upon a time.")
    assert Message.objects.filter(turn=turn_id, kind="assistant").count() == 1
    costs = ModelCall.objects.filter(turn=turn_id).order_by("number").values_list("aborted", "cost_source")
    assert [(aborted, bool(source)) for aborted, source in costs] == [
        (False, True),
        (True, True),
        (False, True),
    ]


def test_a_lost_worker_gives_a_cut_text_no_further_continuation(rig, model, settings):
    """A2.4, A3.9, A10.1: the count of a turn is the turn's, and what belongs together is one round"""
    settings.OUTPUT_CONTINUATIONS_PER_TURN = 1
    session = factories.session()
    turn_id = cut_and_going_on(session, model)
    model.will(ScriptedText(" a time"), ScriptedFinish("length"))
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    assert (turn.status, answer(turn_id)) == ("succeeded", "Once upon a time")
    assert (len(model.requests), notices(session)) == (3, ["output_truncated"])
    assert turn.summary["rounds"] == 1
