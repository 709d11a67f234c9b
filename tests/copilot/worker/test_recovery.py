"""A worker is lost: its turn continues elsewhere, and nothing it does later lands (T4, T9, D2, D10)."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from config.core.errors import FenceLost, TurnConflict
from config.core.redis import get_redis
from copilot.agent.resume import INTERRUPTED_RESULT
from copilot.chat import (
    compaction_requests,
    messages,
    next_turn,
    questions,
    sessions,
    turn_transitions,
    turns,
)
from copilot.chat import queue as chat_queue
from copilot.models import Message, ModelCall, Question, Turn, WorkerHeartbeat
from copilot.providers.base import CallFragment
from copilot.providers.scripted import ScriptedCall, ScriptedReasoning, ScriptedText
from copilot.realtime import redis_keys
from copilot.realtime.payloads import Todo
from copilot.worker.turn_worker import claim_and_prepare_turns
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import (
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
    said,
    shown,
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


def lose(rig, turn_id):
    """Kill the worker, start another, and let the sweep find out."""
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    return turn_id


def assert_whole(session, turn_id):
    """T8.4, T9.6: one ending, a free session, and the live page equals the reloaded one."""
    turn = ended(turn_id)
    quiet(session)
    assert len(endings(session.pk, turn_id)) == 1
    assert not Message.objects.filter(session=session, streaming=True).exists()
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))
    return turn


# --- takeover ----------------------------------------------------------------------------------------


def test_text_continues_in_the_same_row_without_gap_or_repetition(session, model, rig):
    """T9.1, A-D10.1: from the checkpoint and the log, with `turn.recovering` for those who watch"""
    model.will(ScriptedText("Once upon a time there was", size=3), cue(1))
    model.will(ScriptedText(" a ship."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: shown(session) == "Once upon a time there was")
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, turn.attempts) == ("succeeded", 2)
    assert answer(turn_id) == "Once upon a time there was a ship."
    assert Message.objects.filter(turn=turn_id, kind="assistant").count() == 1
    assert [event.attempt for event in told(session.pk, "turn.recovering")] == [2]
    assert shown(session) == "Once upon a time there was a ship."


def test_a_text_that_was_whole_needs_nothing_added_though_the_log_is_gone(session, model, rig):
    """A3.9, A2.5: its worker died before the reply's end was recorded, and Redis lost what it had told"""
    model.will(ScriptedText("All is said. " * 400), cue(1))  # enough for a checkpoint
    model.will()
    turn_id = start(session)
    model.reaches(1)
    until(lambda: Message.objects.filter(turn=turn_id, kind="assistant", content__endswith="said. ").exists())
    stored = answer(turn_id)
    rig.worker.kill()
    get_redis().delete(redis_keys.event_log_key(str(session.pk)))
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    quiet(session)
    assert (turn.status, turn.attempts, notices(session)) == ("succeeded", 2, [])
    assert answer(turn_id) == stored
    assert kinds(session) == ["user", "assistant"]
    assert len(model.requests) == 2


def test_a_lost_summary_on_request_is_made_by_another_worker(session, model, rig):
    """A3.9, A17.6: the turn is still for a summary, and for nothing else"""
    ended(start(session, "Paint it"))
    quiet(session)
    model.will(cue(1), ScriptedText("never heard"))
    model.will(ScriptedText("So far: paint."))
    compaction_requests.request_compaction(session.owner_id, session.pk, focus="the colour")
    model.reaches(1)
    turn_id = Turn.objects.get(session=session, purpose="compaction").pk
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, turn.attempts, turn.purpose) == ("succeeded", 2, "compaction")
    assert kinds(session) == ["user", "assistant", "summary"]
    assert "the colour" in model.said_to()
    purposes = ModelCall.objects.filter(turn=turn_id).order_by("number").values_list("purpose", "aborted")
    assert list(purposes) == [("compaction", True), ("compaction", False)]


def test_a_stored_tool_result_is_not_produced_again(session, model, rig, monkeypatch):
    """A3.c1: killed after the result's row, before the next model call"""
    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("fetch"))
    model.will(cue(1), ScriptedText("never heard"))
    model.will(ScriptedText("Got it."))
    turn_id = start(session)
    model.reaches(1)
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, errand.runs, answer(turn_id)) == ("succeeded", 1, "Got it.")
    assert "errand fetch done" in model.said_to()


def test_a_tool_that_may_not_run_twice_has_an_unknown_outcome(session, model, rig, monkeypatch):
    """A3.c2, A-D10.2: it ran once, and the model is told"""
    errand = Errand("pay", waits=True)
    add_tools(monkeypatch, errand)
    model.will(ScriptedText("Paying."), ScriptedCall("pay"))
    model.will(ScriptedText("I do not know whether it was paid."))
    turn_id = start(session)
    until(lambda: errand.runs)
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, errand.runs) == ("succeeded", 1)
    assert Message.objects.get(turn=turn_id, kind="tool_result").content == INTERRUPTED_RESULT
    assert INTERRUPTED_RESULT in model.said_to()


def test_a_repeatable_tool_runs_again(session, model, rig, monkeypatch):
    """A3.9: with one result all the same"""
    errand = Errand("look", waits=True, repeatable=True)
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("look"))
    model.will(ScriptedText("Seen."))
    turn_id = start(session)
    until(lambda: errand.runs)
    lose(rig, turn_id)
    until(lambda: errand.runs == 2)
    errand.cue.give()
    turn = assert_whole(session, turn_id)
    assert (turn.status, errand.runs) == ("succeeded", 2)
    assert Message.objects.get(turn=turn_id, kind="tool_result").content == "errand look done"


def test_of_a_group_only_what_is_missing_is_made_up(session, model, rig, monkeypatch):
    """A9.8, A3.9: finished, repeatable and unrepeatable calls of one reply"""
    quick, look, pay = Errand("quick"), Errand("look", waits=True, repeatable=True), Errand("pay", waits=True)
    add_tools(monkeypatch, quick, look, pay)
    model.will(ScriptedCall("quick"), ScriptedCall("look"), ScriptedCall("pay"))
    model.will(ScriptedText("Done."))
    turn_id = start(session)
    until(lambda: look.runs and pay.runs and Message.objects.filter(kind="tool_result").exists())
    lose(rig, turn_id)
    until(lambda: look.runs == 2)
    look.cue.give()
    assert_whole(session, turn_id)
    results = dict(
        Message.objects.filter(turn=turn_id, kind="tool_result").values_list("data__tool", "content")
    )
    assert results == {"quick": "errand quick done", "look": "errand look done", "pay": INTERRUPTED_RESULT}
    assert (quick.runs, look.runs, pay.runs) == (1, 2, 1)


def test_thoughts_that_were_cut_off_end_as_they_are(session, model, rig):
    """T9.1"""
    model.will(ScriptedReasoning("I was thinking"), cue(1))
    model.will(ScriptedText("Never mind."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "reasoning.extended"))
    lose(rig, turn_id)
    assert_whole(session, turn_id)
    assert Message.objects.get(turn=turn_id, kind="reasoning").content == "I was thinking"
    assert answer(turn_id) == "Never mind."


def test_a_reply_cut_off_in_its_arguments_is_no_answer(session, model, rig, monkeypatch):
    """T9.1: the words before a tool call are not the turn's answer because they happen to stand"""
    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    model.will(ScriptedText("Let me look."), CallFragment(0, "call_x", "fetch", '{"no'), cue(1))
    model.will(ScriptedCall("fetch"))
    model.will(ScriptedText("Here it is."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "text.ended"))
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, errand.runs) == ("succeeded", 1)
    assert answer(turn_id).endswith("Here it is.")


def test_words_before_a_call_that_was_lost_are_no_answer(session, model, rig, monkeypatch):
    """A3.9, A2.5: the reply came to its end and its cost was recorded, but the worker lost the turn before the call's row"""
    add_tools(monkeypatch, fetch := Errand("fetch"))
    model.will(ScriptedText("Looking."), ScriptedCall("fetch", {"note": "a"}), cue(1))
    model.will(ScriptedCall("fetch", {"note": "b"}))
    model.will(ScriptedText("Found."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "tool.proposed"))
    ModelCall.objects.filter(turn=turn_id).update(ended_at=Now(), aborted=False)
    lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, fetch.given) == ("succeeded", ["b"])
    assert answer(turn_id) == "Looking.Found."


def test_words_before_a_call_that_was_lost_are_no_answer_though_the_log_is_gone(
    session, model, rig, monkeypatch
):
    """A3.9: the call's own row says that its reply asked for tools"""
    add_tools(monkeypatch, fetch := Errand("fetch"))
    model.will(ScriptedText("Looking."), ScriptedCall("fetch", {"note": "a"}), cue(1))
    model.will(ScriptedCall("fetch", {"note": "b"}))
    model.will(ScriptedText("Found."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "tool.proposed"))
    ModelCall.objects.filter(turn=turn_id).update(ended_at=Now(), ending="called")
    rig.worker.kill()
    get_redis().delete(redis_keys.event_log_key(str(session.pk)))
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    assert (turn.status, fetch.given) == ("succeeded", ["b"])
    assert answer(turn_id) == "Looking.Found."


def test_a_complete_answer_is_not_requested_again(session, model, rig):
    """A3.9, A3.6: killed between the answer and the ending, which tells what the answer took"""
    rig.hold_tasks()
    turn_id = start(session)
    [claimed] = turns.claim_turns([turn_id], rig.worker.name).claimed
    from copilot.chat import model_calls

    model_calls.start_model_call(turn_id, 1, "scripted", "demo")
    row = messages.NewMessage(
        id=factories.uuid.uuid4(),
        turn_id=turn_id,
        fence=claimed.fence,
        kind="assistant",
        content="The answer.",
    )
    messages.append_messages([row])
    ModelCall.objects.filter(turn=turn_id).update(
        ended_at="2026-01-01T00:00:00Z", ending="answered", output_tokens=7
    )
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    assert (turn.status, answer(turn_id), len(rig.model.requests)) == ("succeeded", "The answer.", 0)
    assert (turn.summary["rounds"], turn.summary["tokens"]["output"]) == (1, 7)


def test_a_question_is_not_asked_twice(session, model, rig):
    """A12.4: after redelivery the open question is reused"""
    model.will(ScriptedCall("ask_user", {"question": "Port or starboard?"}))
    model.will(ScriptedText("Port it is."))
    turn_id = start(session)
    until(lambda: told(session.pk, "question.asked"))
    lose(rig, turn_id)
    until(lambda: status(turn_id) == "running")
    question = Question.objects.get(turn=turn_id)
    questions.record_answer(session.owner_id, question.pk, text="Port", choice=None)
    assert_whole(session, turn_id)
    assert Question.objects.filter(turn=turn_id).count() == 1
    assert "Port" in model.said_to()


def test_the_third_death_ends_the_turn_as_worker_lost(session, model, rig):
    """T9.1, A-D10.5: with a notice, everything said so far, and chips kept"""
    for number in (1, 2, 3):
        model.will(ScriptedText(f"Try {number}. "), cue(number))
    turn_id = start(session)
    for number in (1, 2, 3):
        model.reaches(number)
        until(lambda: f"Try {number}. " in shown(session))
        if number == 2:
            queue(session, "Still there?")
        lose(rig, turn_id)
    turn = assert_whole(session, turn_id)
    assert (turn.status, turn.failure_code, turn.attempts) == ("failed", "worker_lost", 3)
    assert notices(session) == ["worker_lost"]
    assert answer(turn_id) == "Try 1. Try 2. Try 3. "
    assert (waiting(session), lease_of(session)) == (["Still there?"], {})
    assert reaper.take_over_dead_turns() == 0
    ended(start(session, "Again"))
    quiet(session)
    assert said(session) == ["Hello", "Still there?", "Again"]


def test_costs_of_a_lost_run_are_neither_lost_nor_doubled(session, model, rig):
    """T9.6, A19.3: one usage record per call that was sent"""
    from billing.models import UsageRecord

    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: shown(session) == "Half")
    lose(rig, turn_id)
    assert_whole(session, turn_id)
    until(lambda: UsageRecord.objects.count() == 2)
    calls = ModelCall.objects.filter(turn=turn_id)
    assert sorted(calls.values_list("number", flat=True)) == [1, 2]
    assert set(UsageRecord.objects.values_list("call_id", flat=True)) == set(
        calls.values_list("pk", flat=True)
    )


def test_a_call_that_was_prepared_and_never_sent_costs_nothing(session, rig):
    """A19.5: its worker died between the claim, which makes the row, and the request"""
    from billing.models import UsageRecord

    rig.hold_tasks()
    turn_id = start(session)
    claim_and_prepare_turns([turn_id], "died at once")
    assert ModelCall.objects.filter(turn=turn_id).count() == 1
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")
    rig.start_worker()
    assert reaper.take_over_dead_turns() == 1
    assert_whole(session, turn_id)
    until(lambda: not ModelCall.objects.filter(turn=turn_id, ended_at=None).exists())
    unsent, sent = ModelCall.objects.filter(turn=turn_id).order_by("number")
    assert (unsent.aborted, unsent.cost_microdollars) == (True, None)
    assert list(UsageRecord.objects.values_list("call_id", flat=True)) == [sent.pk]


def test_a_call_that_was_sent_and_not_answered_costs_an_estimate(session, model, rig):
    """A19.5, T9.6: the log has its step, and nothing else of it stands anywhere"""
    from billing.models import UsageRecord

    model.will(cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "step.started"))
    lose(rig, turn_id)
    assert_whole(session, turn_id)
    until(lambda: UsageRecord.objects.count() == 2)


def test_a_turn_stopped_before_its_request_costs_nothing(session, rig):
    """A19.5: the claim made the row, the stop was quicker than the request"""
    from billing.models import UsageRecord

    rig.hold_tasks()
    turn_id = start(session)
    worker = rig.start_worker()
    worker.interrupt_at_once("stop")
    worker.take(turn_id)
    assert ended(turn_id).status == "cancelled"
    until(lambda: not ModelCall.objects.filter(turn=turn_id, ended_at=None).exists())
    assert not UsageRecord.objects.exists()


# --- fences ------------------------------------------------------------------------------------------


def test_a_worker_that_wakes_after_a_takeover_can_harm_nothing(session, model, rig):
    """T4.1, T12, A-D2.2: its rows, checkpoints, publishes and its ending are refused"""
    model.will(ScriptedText("Mine"), cue(1), ScriptedText(" and mine alone"))
    model.will(ScriptedText(", said the other."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: shown(session) == "Mine")
    old = rig.worker
    old.freeze()
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")
    WorkerHeartbeat.objects.filter(pk=old.name).update(last_beat_at="2026-01-01T00:00:00Z")
    get_redis().delete(redis_keys.heartbeat_key(old.name))
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    ended(turn_id)
    quiet(session)
    before = (transcript(session), kinds(session), len(told(session.pk)))
    model.give(1)
    old.wake()
    until(lambda: not old.running())
    assert (transcript(session), kinds(session), len(told(session.pk))) == before
    assert before[0] == ["Hello", "Mine, said the other."]
    assert Turn.objects.get(pk=turn_id).attempts == 2


def test_whatever_an_older_fence_writes_is_refused(session, rig):
    """T4.1, T4.3: row, checkpoint, final text, todos, retraction, taking, ending and hand-over"""
    rig.hold_tasks()
    turn_id = start(session)
    [old] = turns.claim_turns([turn_id], "old").claimed
    row = messages.NewMessage(
        id=factories.uuid.uuid4(), turn_id=turn_id, fence=old.fence, kind="assistant", streaming=True
    )
    assert messages.append_messages([row])
    assert turn_transitions.requeue_turn(turn_id, old.fence, lost=True).fence == old.fence + 1
    [new] = turns.claim_turns([turn_id], "new").claimed
    late = messages.NewMessage(id=factories.uuid.uuid4(), turn_id=turn_id, fence=old.fence, kind="notice")
    assert messages.append_messages([late]) == {}
    draft = messages.StreamingDraft(
        row_id=row.id, turn_id=turn_id, fence=old.fence, content="late", streaming=False
    )
    assert messages.save_drafts([draft]) == set()
    with pytest.raises(FenceLost):
        chat_queue.consume_pending_messages(turn_id, old.fence, lambda pending: [])
    with pytest.raises(FenceLost):
        messages.retract_messages(turn_id, old.fence, [row.id])
    with pytest.raises(FenceLost):
        sessions.set_todos(turn_id, old.fence, [Todo(text="late", status="pending")])
    with pytest.raises(TurnConflict):
        turn_transitions.end_turn(turn_id, old.fence, turns.SUCCEEDED)
    assert turn_transitions.requeue_turn(turn_id, old.fence, lost=False) is None
    assert (status(turn_id), new.fence) == ("running", old.fence + 1)


def test_a_late_ending_of_one_turn_does_not_touch_the_next(session, model, rig):
    """T4.3, T12"""
    first = start(session)
    ended(first)
    quiet(session)
    model.will(ScriptedText("Second"), cue(1))
    second = start(session, "Second")
    model.reaches(1)
    for ending in (turns.SUCCEEDED, turns.CANCELLED):
        with pytest.raises(TurnConflict):
            turn_transitions.end_turn(first, 1, ending)
    token = Turn.objects.get(pk=first).token
    next_turn.release_or_start_next(session.pk, token, None)
    assert (status(second), lease_of(session)["turn"]) == ("running", str(second))
    model.give(1)
    assert ended(second).status == "succeeded"


# --- deploys -----------------------------------------------------------------------------------------


def test_a_rolling_restart_hands_ten_turns_over_without_an_attempt(rig, model):
    """T9.4, A1.8, A-D10.7"""
    model.otherwise = rolling
    sailing = [(session, start(session)) for session in (factories.session() for _ in range(10))]
    until(lambda: all(shown(session) == "Going" for session, _ in sailing))
    old = rig.worker
    rig.start_worker()
    old.leave(grace_seconds=0)
    for session, turn_id in sailing:
        turn = assert_whole(session, turn_id)
        assert (turn.status, turn.attempts, turn.handovers) == ("succeeded", 1, 1)
        assert answer(turn_id) == "Going on."
    assert not WorkerHeartbeat.objects.filter(pk=old.name).exists()


def test_hand_overs_beyond_the_fifth_are_losses_and_losses_end_the_turn(session, model, rig):
    """A3.9: deploys cannot keep a turn for ever"""
    model.will(ScriptedText("Going"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    rig.worker.running_turn(turn_id, attempts=3, handovers=5)
    old = rig.worker
    rig.start_worker()
    old.leave(grace_seconds=0)
    turn = assert_whole(session, turn_id)
    assert (turn.status, turn.failure_code, turn.attempts) == ("failed", "worker_lost", 3)
    assert (answer(turn_id), notices(session)) == ("Going", ["worker_lost"])


def rolling(request):
    continues = "Going" in repr(request.messages[-2:])
    return [ScriptedText(" on.")] if continues else [ScriptedText("Going"), cue(99)]


def test_a_turn_that_ends_within_the_grace_is_not_handed_over(session, model, rig):
    """T9.4"""
    import threading

    model.will(ScriptedText("Nearly"), cue(1), ScriptedText(" there"))
    turn_id = start(session)
    model.reaches(1)
    leaving = threading.Thread(target=rig.worker.leave, args=[20.0])
    leaving.start()
    until(lambda: WorkerHeartbeat.objects.filter(draining=True).exists())
    model.give(1)
    leaving.join()
    turn = ended(turn_id)
    assert (turn.status, turn.handovers, answer(turn_id)) == ("succeeded", 0, "Nearly there")


def test_a_draining_worker_takes_nothing_new(session, rig):
    """T9.4"""
    from celery.exceptions import Reject

    rig.hold_tasks()
    turn_id = start(session)
    rig.worker.leave()
    with pytest.raises(Reject):
        rig.worker.take(turn_id)
    assert status(turn_id) == "queued"
