"""Running a turn: one ending always, rows before events, signs of life, and limits (T5, A3)."""

from __future__ import annotations

import threading

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from copilot import metrics, tasks
from copilot.chat import questions, turns
from copilot.chat.turn_context import get_turn_context
from copilot.models import Message, ModelCall, Question, Turn
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedHang,
    ScriptedReasoning,
    ScriptedText,
    ScriptedUsage,
)
from copilot.realtime.payloads import Tokens
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
    log_of,
    notices,
    queue,
    quiet,
    shown,
    start,
    status,
    together,
    told,
    transcript,
    turn_of,
    until,
)


def test_a_message_is_answered_and_the_session_is_free_again(rig, model):
    """T5, T12"""
    session = factories.session()
    model.will(ScriptedText("Ahoy, Ada."))
    turn = ended(start(session, "Hello"))
    quiet(session)
    assert turn.status == "succeeded"
    assert transcript(session) == ["Hello", "Ahoy, Ada."]
    assert endings(session.pk) == ["turn.succeeded"]
    assert lease_of(session) == {}


def test_delivering_a_task_twice_is_harmless(rig, model):
    """T5.1, A-D10.4: also long after the end"""
    session = factories.session()
    model.will(ScriptedText("Once."), cue(1))
    turn_id = start(session)
    model.reaches(1)
    tasks.run_turn(str(turn_id))
    tasks.run_turn(str(turn_id))
    model.give(1)
    ended(turn_id)
    tasks.run_turn(str(turn_id))
    assert ended(start(session, "Next")).status == "succeeded"
    assert len(model.requests) == 2
    assert transcript(session) == ["Hello", "Once.", "Next", "Aye."]


def test_of_two_workers_with_the_same_task_one_runs_the_turn(rig, model):
    """T5.1, T12"""
    first, second = rig.worker, rig.start_worker()
    rig.hold_tasks()
    for number in range(20):
        session = factories.session()
        turn_id = start(session, f"Race {number}")
        together(lambda: first.take(turn_id), lambda: second.take(turn_id))
        ended(turn_id)
        quiet(session)
        assert endings(session.pk) == ["turn.succeeded"]
        assert transcript(session) == [f"Race {number}", "Aye."]
    assert len(model.requests) == 20


def test_a_turn_that_is_not_queued_is_left_alone(rig):
    """T5.1"""
    session = factories.session()
    for over in ("running", "succeeded", "failed", "cancelled"):
        turn = factories.turn(session, over)
        assert turns.claim_turns([turn.pk], "another").claimed == []
        Turn.objects.filter(pk=turn.pk).delete()


def test_every_event_finds_its_row_already_stored(rig, model, monkeypatch):
    """T5.3: looked at from outside, while it happens"""
    add_tools(monkeypatch, Errand("fetch"))
    session = factories.session()
    model.will(ScriptedReasoning("Hm."), ScriptedText("Let me see."), ScriptedCall("fetch"))
    model.will(ScriptedText("Here it is."))
    turn_id = start(session)
    seen: set[str] = set()
    while "turn.succeeded" not in seen:
        for one in log_of(session.pk):
            seen.add(one.kind)
            for row_id in rows_in(one):
                assert Message.objects.filter(pk=row_id).exists(), one.kind
            if one.kind == "turn.succeeded":
                assert status(turn_id) == "succeeded"
    assert {"reasoning.started", "text.started", "tool.called", "tool.finished"} <= seen


def rows_in(one):
    from copilot.realtime import events

    event = events.decode_event(one.payload)
    message = getattr(event, "message", None)
    return [message.id] if message is not None and not isinstance(message, str) else []


def test_folding_the_log_gives_what_a_reload_gives(rig, model, monkeypatch):
    """T8.4: reasoning, text, parallel tools, a failed call, a follow-up, todos and a second answer"""
    add_tools(monkeypatch, Errand("fetch"))
    session = factories.session()
    before = fresh(session)
    todos = {"items": [{"text": "Sail", "status": "pending"}]}
    model.will(
        ScriptedReasoning("Hm."),
        ScriptedText("Let me see.", size=3),
        ScriptedCall("fetch"),
        ScriptedCall("fetch"),
        ScriptedCall("nothing"),
    )
    model.will(ScriptedCall("todos_write", todos), cue(1))
    model.will(ScriptedText("Here it is.", size=2))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "And the boat?")
    model.give(1)
    ended(turn_id)
    quiet(session)
    assert_same_page(folded(before, session), fresh(session))
    assert kinds(session)[:3] == ["user", "reasoning", "assistant"]


def test_a_failing_model_ends_the_turn_once_with_its_class(rig, model):
    """T5.4, T2.3"""
    session = factories.session()
    model.will(ScriptedText("Half an ans"), ScriptedFailure("auth_failed", status=401))
    turn = ended(start(session))
    quiet(session)
    assert (turn.status, turn.failure_code) == ("failed", "auth_failed")
    assert endings(session.pk) == ["turn.failed"]
    assert notices(session) == ["auth_failed"]
    assert ended(start(session, "Again")).status == "succeeded"


def test_a_fault_of_ours_still_ends_the_turn_once(rig, model):
    """T5.4: an exception nobody named"""

    def broken(request):
        raise ZeroDivisionError("a bug")

    session = factories.session()
    model.otherwise = broken
    turn = ended(start(session))
    quiet(session)
    assert turn.status == "failed"
    assert endings(session.pk) == ["turn.failed"]
    model.always(ScriptedText("Aye."))
    assert ended(start(session, "Again")).status == "succeeded"


def test_silence_is_broken_by_heartbeats(rig, model, settings):
    """T5.5, A3.3, A2.6: while a model is silent, between two tries, and while a question waits (tools: A3.c3)"""
    settings.HEARTBEAT_SECONDS, settings.RETRY_TRANSIENT_SECONDS = 0.1, [3]
    session = factories.session()
    model.will(cue(1), ScriptedFailure("overloaded"))
    model.will(ScriptedCall("ask_user", {"question": "Which?"}))
    turn_id = start(session)

    def beats():
        return [beat.phase for beat in told(session.pk, "turn.heartbeat")]

    until(lambda: beats()[-1:] == ["model"])
    model.give(1)
    until(lambda: beats()[-1:] == ["retry"])
    until(lambda: beats()[-1:] == ["question"])
    questions.record_answer(session.owner_id, Question.objects.get().pk, text="This", choice=None)
    assert ended(turn_id).status == "succeeded"
    assert [*dict.fromkeys(beats())][:3] == ["model", "retry", "question"]


def test_a_stream_that_stays_silent_ends_as_idle_timeout(rig, model, settings):
    """T5.5, A3.4: heartbeats do not reset the watchdog"""
    settings.HEARTBEAT_SECONDS, settings.STREAM_IDLE_SECONDS = 0.1, 1.0
    session = factories.session()
    model.will(ScriptedText("Begun, "), ScriptedHang())
    turn = ended(start(session))
    quiet(session)
    assert (turn.status, turn.failure_code) == ("failed", "idle_timeout")
    assert answer(turn.pk) == "Begun, "
    assert model.closed == 1


def test_rounds_are_limited(rig, model, monkeypatch, settings):
    """T5.5, A10.6: the last permitted round gets no more tools, and the turn says why it ended; so do the metrics"""
    settings.TURN_MAX_ROUNDS = 2
    limited = metrics.turn_limits.labels("round_limit")
    before = limited._value.get()
    add_tools(monkeypatch, Errand("fetch"))
    session = factories.session()
    model.always(ScriptedText("More. "), ScriptedCall("fetch"))
    turn = ended(start(session))
    assert (turn.status, turn.limit_code) == ("succeeded", "round_limit")
    assert len(model.requests) == 2
    assert limited._value.get() == before + 1


def test_a_process_takes_no_more_turns_than_its_cap(rig, model, settings):
    """T5.2: the turn beyond the cap waits for a free place, and then runs"""
    settings.TURNS_PER_PROCESS = 1
    worker = rig.start_worker()
    rig.hold_tasks()
    first, second = factories.session(), factories.session()
    model.always(cue(1), ScriptedText("Aye."))
    begun, behind = start(first), start(second)
    worker.take(begun)
    waits = threading.Thread(target=worker.take, args=[behind])
    waits.start()
    model.reaches(1)
    assert (status(begun), status(behind), len(worker.running())) == ("running", "queued", 1)
    model.give(1)
    waits.join()
    assert [ended(begun).status, ended(behind).status] == ["succeeded", "succeeded"]


def test_turns_of_one_process_do_not_see_each_other(rig, model, monkeypatch):
    """A1.c4: context variables"""
    seen = {}

    async def look(arguments, invocation):
        seen[invocation.context.session_id] = get_turn_context().session_id
        return await Errand._run(errand, arguments, invocation)

    errand = Errand("look", waits=True)
    object.__setattr__(errand.tool, "run", look)
    add_tools(monkeypatch, errand)
    model.otherwise = lambda request: (
        [ScriptedCall("look")] if request.messages[-1].role == "user" else [ScriptedText("Seen.")]
    )
    sessions = [factories.session(), factories.session(factories.bob())]
    begun = [start(session) for session in sessions]
    until(lambda: errand.runs == 2)
    errand.cue.give()
    assert [ended(turn_id).status for turn_id in begun] == ["succeeded", "succeeded"]
    assert seen == {str(session.pk): str(session.pk) for session in sessions}


def test_each_model_call_is_recorded_once_with_its_cost(rig, model, monkeypatch):
    """A3.6, A19.3, T9.6"""
    from billing.models import UsageRecord

    add_tools(monkeypatch, Errand("fetch"))
    session = factories.session()
    model.will(ScriptedUsage(Tokens(input=10, output=5)), ScriptedCall("fetch"))
    model.will(ScriptedText("Done."), ScriptedUsage(Tokens(input=20, output=7)))
    turn = ended(start(session))
    until(lambda: ModelCall.objects.filter(turn=turn, ended_at__isnull=False).count() == 2)
    calls = ModelCall.objects.filter(turn=turn).order_by("number")
    assert [(call.number, call.input_tokens, call.output_tokens) for call in calls] == [
        (1, 10, 5),
        (2, 20, 7),
    ]
    assert set(UsageRecord.objects.values_list("call_id", flat=True)) == {call.pk for call in calls}
    assert turn.summary["tokens"]["output"] == 12


def test_a_turns_queries_do_not_grow_with_the_conversation(rig, model):
    """P12: submit and the claim of the worker, counted on this connection; see also the snapshot's count"""
    short, long = factories.session(), factories.session()
    for number in range(300):
        factories.message(long, "user" if number % 2 == 0 else "assistant", content=f"row {number}")
    rig.hold_tasks()
    start(factories.session())  # prices and policy are read once per process
    counts = []
    for session in (short, long):
        with CaptureQueriesContext(connection) as queries:
            start(session)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 8
    for session in (short, long):
        turn_id = Turn.objects.get(session=session).pk
        rig.worker.take(turn_id)
        assert ended(turn_id).status == "succeeded"
        assert turn_of(log_of(session.pk)[-1]) in (None, str(turn_id))


@pytest.mark.parametrize(("said", "how"), [(["Half"], "succeeded"), ([], "failed")])
def test_the_time_of_a_turn_is_over_in_the_middle_of_a_reply_too(rig, model, settings, said, how):
    """A10.5, A10.6, T5.5: what came of it is kept, and is an answer if it has words"""
    session = factories.session()
    model.will(ScriptedReasoning("Hm."), *map(ScriptedText, said), cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: shown(session) == "".join(said))
    rig.worker.age(turn_id, settings.TURN_MAX_SECONDS)
    turn = ended(turn_id)
    assert (turn.status, turn.limit_code or turn.failure_code) == (how, "time_limit")
    assert notices(session) == ["time_limit"]
    assert [row.content for row in Message.objects.filter(turn=turn, kind="assistant")] == said
    assert not Message.objects.filter(turn=turn, streaming=True).exists()
    until(lambda: model.closed == 1)


def test_the_time_of_a_turn_is_over_in_the_middle_of_a_tool_too(rig, model, settings, monkeypatch):
    """A10.5, A3.5: the call has its result"""
    slow = Errand("slow", waits=True)
    add_tools(monkeypatch, slow)
    session = factories.session()
    model.will(ScriptedText("Looking."), ScriptedCall("slow"))
    turn_id = start(session)
    until(slow.cue.reached.is_set)
    rig.worker.age(turn_id, settings.TURN_MAX_SECONDS)
    turn = ended(turn_id)
    assert (turn.status, turn.limit_code) == ("succeeded", "time_limit")
    [result] = Message.objects.filter(turn=turn, kind="tool_result")
    assert result.data["success"] is False
