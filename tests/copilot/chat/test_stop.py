"""Stop: acknowledged at once, ended within a second, and nothing that was produced is lost (T7, A1)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from config.core.errors import NotFound
from config.core.redis import get_redis
from copilot.chat import admission, announcements, questions, stop, turn_transitions, turns
from copilot.models import Message, Question, Turn
from copilot.providers.base import CallFragment
from copilot.providers.scripted import ScriptedCall, ScriptedHang, ScriptedReasoning, ScriptedText
from copilot.realtime import redis_keys, worker_signals
from copilot.web import transcript as web_transcript
from copilot.worker import recovery
from tests.support import factories
from tests.support.turn_engine import (
    PATIENCE_SECONDS,
    Errand,
    add_tools,
    answer,
    assert_same_page,
    cue,
    ended,
    endings,
    folded,
    fresh,
    kinds,
    lease_of,
    notices,
    queue,
    quiet,
    rows_of,
    said,
    start,
    status,
    told,
    transcript,
    until,
    waiting,
)


@pytest.fixture
def session(rig):
    return factories.session()


def press_stop(session, **options):
    return stop.stop_session(session.owner_id, session.pk, **options)


def assert_stopped(session, turn_id):
    """T7.1, T7.2, T8.4: one ending, a free and usable session, and a page that equals its reload."""
    turn = ended(turn_id)
    quiet(session)
    assert turn.status == "cancelled"
    assert endings(session.pk, turn_id) == ["turn.cancelled"]
    assert notices(session) == ["stopped"]
    assert not Message.objects.filter(session=session, streaming=True).exists()
    calls = set(Message.objects.filter(session=session, kind="tool_call").values_list("call_id", flat=True))
    results = set(
        Message.objects.filter(session=session, kind="tool_result").values_list("call_id", flat=True)
    )
    assert calls == results
    assert_same_page(folded(folded_from_nothing(), session), fresh(session))
    assert ended(start(session, "And now?")).status == "succeeded"


def folded_from_nothing():
    from tests.support.event_reducer import ReducedTranscript

    return ReducedTranscript()


# --- wherever the turn stands (T12) ------------------------------------------------------------------


def test_a_turn_that_waits_in_the_broker_is_cancelled_in_the_request(rig, session):
    """T7.3, A1.5: the task that comes later finds it ended"""
    rig.hold_tasks()
    turn_id = start(session)
    stopped = press_stop(session)
    assert (stopped.turn_id, stopped.state, status(turn_id)) == (turn_id, "stopping", "cancelled")
    rig.start_worker().take(turn_id)
    assert_stopped(session, turn_id)
    assert len(rig.model.requests) == 1


def test_a_stop_between_a_turns_row_and_its_news_tells_of_both_and_the_news_comes_to_nothing(
    rig, session, monkeypatch
):
    """T8.4, T7.3: who opened it was slow, or died; nobody waits for a turn that is over"""
    opened, stopped = threading.Event(), threading.Event()
    announce = announcements.announce_queued_turn

    def late(*args, **kwargs):
        opened.set()
        assert stopped.wait(PATIENCE_SECONDS)
        return announce(*args, **kwargs)

    monkeypatch.setattr(admission, "announce_queued_turn", late)
    rig.hold_tasks()
    with ThreadPoolExecutor(1) as one:
        sending = one.submit(start, session)
        assert opened.wait(PATIENCE_SECONDS)
        press_stop(session)
        before = folded(folded_from_nothing(), session)
        stopped.set()
        turn_id = sending.result()
        one.submit(lambda: connection.close()).result()
    monkeypatch.undo()
    assert status(turn_id) == "cancelled"
    after = folded(folded_from_nothing(), session)
    for seen in (before, after):
        assert_same_page(seen, fresh(session))
        assert (seen.state, seen.turn) == ("idle", None)
    assert len(endings(session.pk, turn_id)) == 1


def test_a_turn_taken_by_a_worker_between_stop_and_cancel_is_left_to_that_worker(rig, session):
    """T4.3: the request ends only what no worker runs; otherwise two would tell the story"""
    rig.hold_tasks()
    turn_id = start(session)
    stopping = turn_transitions.request_stop(session.pk)
    [claimed] = turns.claim_turns([turn_id], rig.worker.name).claimed
    assert claimed.stopped
    from copilot.chat.stop import cancel_turn_without_worker

    assert cancel_turn_without_worker(session.pk, stopping) is False
    assert status(turn_id) == "running"


def test_a_stopped_turn_is_cancelled_on_entry(rig, session):
    """A1.5: the mark was set while the task was on its way"""
    rig.hold_tasks()
    turn_id = start(session)
    turn_transitions.request_stop(session.pk)
    rig.start_worker().take(turn_id)
    assert_stopped(session, turn_id)
    assert len(rig.model.requests) == 1


def test_stop_before_the_first_byte(session, model):
    """A1.c1: the provider's stream is closed, the next message starts at once"""
    model.will(ScriptedHang())
    turn_id = start(session)
    until(lambda: model.requests)
    press_stop(session)
    ended(turn_id)  # a hang would be for ever; the bar of 1 s is measured by the bench
    assert model.closed == 1
    assert kinds(session) == ["user", "notice"]
    assert_stopped(session, turn_id)


def test_stop_at_the_first_token(rig, model):
    """T7: 30 times, because the first token makes a row, and a row its event"""
    for number in range(30):
        session = factories.session()
        model.will(ScriptedText("First"), ScriptedHang())
        turn_id = start(session)
        until(lambda: len(model.requests) == 2 * number + 1)
        press_stop(session)
        assert_stopped(session, turn_id)
        assert answer(turn_id) in ("", "First")


def test_stop_in_the_middle_of_the_text_keeps_what_was_shown(session, model):
    """T7.2: and the next turn's model input contains it"""
    model.will(ScriptedText("Once upon a time", size=4), cue(1), ScriptedText(" there was more."))
    turn_id = start(session)
    model.reaches(1)
    press_stop(session)
    assert_stopped(session, turn_id)
    assert answer(turn_id) == "Once upon a time"
    assert "Once upon a time" in model.said_to()
    assert "Stopped" not in model.said_to().replace("Stopped by", "")


def test_stop_while_the_model_thinks(session, model):
    """T7.2"""
    model.will(ScriptedReasoning("Let me think about"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    press_stop(session)
    assert_stopped(session, turn_id)
    assert Message.objects.get(session=session, kind="reasoning").content == "Let me think about"


def test_stop_while_a_tool_runs(session, model, monkeypatch):
    """A9.4, T7.2, A9.c2: the finished call keeps its result, the others say that they were stopped, and so does the page"""
    quick, slow = Errand("quick"), Errand("slow", waits=True)
    add_tools(monkeypatch, quick, slow)
    model.will(ScriptedText("Looking."), ScriptedCall("quick"), ScriptedCall("slow"), ScriptedCall("slow"))
    turn_id = start(session)
    until(lambda: slow.runs == 2 and Message.objects.filter(session=session, kind="tool_result").exists())
    press_stop(session)
    assert_stopped(session, turn_id)
    results = Message.objects.filter(turn=turn_id, kind="tool_result").order_by("sequence")
    assert results[0].content == "errand quick done"
    assert ["Stopped" in row.content for row in results[1:]] == [True, True]
    stopped = [row.call_id for row in results[1:]]
    changed = [one for one in told(session.pk, "tool.state_changed") if one.state == "cancelled"]
    assert [one.call_id for one in changed] == stopped
    page = web_transcript.build_items(rows_of(fresh(session)), running_turn=None)
    assert [item.note for item in page if item.state == "cancelled"] == ["stopped", "stopped"]
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))


def test_stop_while_arguments_stream(session, model):
    """A3.5: the call is stored with empty arguments, and with a result"""
    model.will(ScriptedText("Writing."), CallFragment(0, "call_x", "write_file", '{"name": "a.t'), cue(1))
    turn_id = start(session)
    model.reaches(1)
    press_stop(session)
    assert_stopped(session, turn_id)
    call = Message.objects.get(turn=turn_id, kind="tool_call")
    assert (call.data["tool"], call.data["arguments"]) == ("write_file", {})
    assert "Stopped" in Message.objects.get(turn=turn_id, kind="tool_result").content


def test_stop_while_a_question_waits(session, model):
    """A12.c1"""
    model.will(ScriptedCall("ask_user", {"question": "Port or starboard?"}))
    turn_id = start(session)
    until(lambda: told(session.pk, "question.asked"))
    press_stop(session)
    assert_stopped(session, turn_id)
    assert Question.objects.get(turn=turn_id).outcome == "cancelled"
    assert fresh(session).questions == ()


def test_stop_while_a_retry_waits(session, model):
    """A1.3: sleeping between tries"""
    from copilot.providers.scripted import ScriptedFailure

    model.otherwise = lambda request: [
        ScriptedFailure("overloaded", status=529, headers={"retry-after": "30"})
    ]
    turn_id = start(session)
    until(lambda: told(session.pk, "model.retrying"))
    press_stop(session)
    assert ended(turn_id).status == "cancelled"


def test_a_tool_that_ignores_its_cancellation_is_abandoned(session, model, monkeypatch):
    """A1.c5: its late result makes no row and no event"""
    stubborn = Errand("stubborn", stubborn=True)
    add_tools(monkeypatch, stubborn)
    model.will(ScriptedCall("stubborn"))
    turn_id = start(session)
    until(lambda: stubborn.runs)
    press_stop(session)
    ended(turn_id)
    before = (Message.objects.filter(session=session).count(), len(told(session.pk)))
    stubborn.cue.give()
    assert "Stopped" in Message.objects.get(turn=turn_id, kind="tool_result").content
    assert ended(start(session, "Next")).status == "succeeded"
    rows = Message.objects.filter(session=session, kind="tool_result")
    assert (before[0] + 2, rows.count()) == (Message.objects.filter(session=session).count(), 1)


# --- the way a stop takes ----------------------------------------------------------------------------


def test_a_lost_broadcast_costs_half_a_second(session, model):
    """A1.c2: the poll of the mark alone ends the turn"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    turn_id = start(session)
    until(lambda: told(session.pk, "text.started"))
    turn_transitions.request_stop(session.pk)
    get_redis().set(redis_keys.stop_key(str(session.pk)), str(turn_id), ex=60)  # the mark, and no broadcast
    assert_stopped(session, turn_id)


def test_a_lost_mark_costs_nothing(session, model):
    """A1.4: the broadcast alone ends the turn"""
    model.will(ScriptedHang())
    turn_id = start(session)
    until(lambda: model.requests)
    turn_transitions.request_stop(session.pk)
    worker_signals.signal_stop(str(session.pk), str(turn_id))
    get_redis().delete(redis_keys.stop_key(str(session.pk)))
    assert ended(turn_id).status == "cancelled"


def test_a_worker_that_does_not_obey_is_overridden(session, model, rig):
    """T7.1: by compare-and-set, with a raised fence, so that whatever it does later is void"""
    model.will(ScriptedText("Deaf", size=1), cue(1), ScriptedText(" and blind"))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: len(told(session.pk, "text.extended")) >= 1)
    rig.worker.freeze()
    press_stop(session)
    Turn.objects.filter(pk=turn_id).update(stop_requested_at="2020-01-01T00:00:00Z")
    assert recovery.override_stops() == 1
    assert (status(turn_id), lease_of(session)) == ("cancelled", {})
    rig.start_worker()
    assert ended(start(session, "Next")).status == "succeeded"
    before = [*transcript(session), *endings(session.pk)]
    model.give(1)
    rig.workers[0].wake()
    until(lambda: not rig.workers[0].running())
    assert [*transcript(session), *endings(session.pk)] == before
    assert endings(session.pk, turn_id) == ["turn.cancelled"]
    assert_same_page(folded(folded_from_nothing(), session), fresh(session))


def test_stop_on_an_idle_session_does_nothing(session):
    """T7.3, A1.5: and leaves no mark"""
    assert press_stop(session).state == "idle"
    assert get_redis().get(redis_keys.stop_key(str(session.pk))) is None
    assert ended(start(session)).status == "succeeded"


def test_a_stop_meant_for_one_turn_does_not_touch_the_next(session, model):
    """A1.c4, A1.5: by id, however late it comes"""
    first = start(session)
    ended(first)
    model.will(ScriptedText("Second"), cue(1))
    second = start(session, "Second")
    model.reaches(1)
    assert press_stop(session, turn_id=first).state == "idle"
    worker_signals.signal_stop(str(session.pk), str(first))
    model.give(1)
    assert ended(second).status == "succeeded"


def test_another_user_cannot_stop(session, model):
    """E2: a foreign session looks missing"""
    model.will(cue(1), ScriptedText("Unharmed"))
    turn_id = start(session)
    with pytest.raises(NotFound):
        stop.stop_session(factories.bob().pk, session.pk)
    model.give(1)
    assert ended(turn_id).status == "succeeded"


# --- what was queued (T7.4) --------------------------------------------------------------------------


def test_kept_messages_stay_as_chips_and_run_with_the_next_message(session, model):
    """T7.4, A13.8: in the order in which they were accepted"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    turn_id = start(session, "One")
    until(lambda: told(session.pk, "text.started"))
    queue(session, "Two")
    queue(session, "Three")
    press_stop(session)
    ended(turn_id)
    quiet(session)
    assert waiting(session) == ["Two", "Three"]
    assert_same_page(folded(folded_from_nothing(), session), fresh(session))
    ended(start(session, "Four"))
    quiet(session)
    assert said(session) == ["One", "Two", "Three", "Four"]
    assert waiting(session) == []


def test_a_failed_turn_keeps_what_is_queued_as_chips(session, model):
    """T7.4"""
    from copilot.providers.scripted import ScriptedFailure

    model.will(cue(1), ScriptedFailure("auth_failed", status=401))
    turn_id = start(session, "One")
    model.reaches(1)
    queue(session, "Two")
    model.give(1)
    assert ended(turn_id).status == "failed"
    quiet(session)
    assert (waiting(session), said(session)) == (["Two"], ["One"])


def test_a_kept_message_with_a_run_id_gets_its_own_turn_at_once(session, model):
    """T7.4: it is no chip"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    first = start(session, "One")
    until(lambda: told(session.pk, "text.started"))
    queue(session, "Two", run_id="two")
    press_stop(session)
    ended(first)
    until(lambda: Turn.objects.filter(session=session, run_ids=["two"]).exists())
    second = Turn.objects.get(session=session, run_ids=["two"]).pk
    assert ended(second).status == "succeeded"
    assert said(session) == ["One", "Two"]


def test_dropped_messages_leave_and_each_run_id_gets_its_cancelled_ending(session, model):
    """T7.4, T3.6"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    first = start(session, "One", run_id="one")
    until(lambda: told(session.pk, "text.started"))
    queue(session, "Two")
    queue(session, "Three", run_id="three")
    press_stop(session, queue="drop")
    ended(first)
    quiet(session)
    assert waiting(session) == []
    assert said(session) == ["One"]
    cancelled = told(session.pk, "turn.cancelled")
    assert sorted(run_id for event in cancelled for run_id in event.run_ids) == ["one", "three"]
    assert_same_page(folded(folded_from_nothing(), session), fresh(session))


def test_a_message_accepted_after_the_stop_is_not_affected(session, model, rig):
    """T7.3: it runs at once, although the stopped turn was still ending"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    first = start(session, "One")
    until(lambda: told(session.pk, "text.started"))
    rig.worker.freeze()
    press_stop(session)
    queue(session, "After")
    rig.worker.wake()
    ended(first)
    until(lambda: "After" in said(session))
    quiet(session)
    assert transcript(session) == ["One", "Talking", "After", "Aye."]


def test_stop_closes_what_an_earlier_run_left_open(session, model, rig, monkeypatch):
    """T7.2, A3.5: stopped between a worker's death and the next one's start"""
    slow = Errand("slow", waits=True)
    add_tools(monkeypatch, slow)
    model.will(ScriptedText("Looking."), ScriptedCall("slow"))
    turn_id = start(session)
    until(lambda: slow.runs)
    rig.worker.kill()
    rig.hold_tasks()
    from diagnostics.reaper import take_over_dead_turns

    until(lambda: take_over_dead_turns() == 1)
    assert status(turn_id) == "queued"
    press_stop(session)
    rig.start_worker()
    assert_stopped(session, turn_id)


def test_stop_on_entry_closes_what_an_earlier_run_left_open(session, model, rig):
    """T7.2: the text goes as far as clients saw it"""
    model.will(ScriptedText("Half a sentence", size=3), cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: "".join(event.delta for event in told(session.pk, "text.extended")) == "Half a sentence")
    rig.worker.kill()
    rig.hold_tasks()
    from diagnostics.reaper import take_over_dead_turns

    until(lambda: take_over_dead_turns() == 1)
    turn_transitions.request_stop(session.pk)
    rig.start_worker().take(turn_id)
    assert_stopped(session, turn_id)
    assert answer(turn_id) == "Half a sentence"


def test_questions_of_a_stopped_turn_take_no_more_answers(session, model):
    """A12.4: 409"""
    from config.core.errors import Conflict

    model.will(ScriptedCall("ask_user", {"question": "Really?"}))
    turn_id = start(session)
    until(lambda: told(session.pk, "question.asked"))
    press_stop(session)
    ended(turn_id)
    question = Question.objects.get(turn=turn_id)
    with pytest.raises(Conflict):
        questions.record_answer(session.owner_id, question.pk, text="Yes", choice=None)
