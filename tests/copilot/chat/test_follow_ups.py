"""Results of sub-sessions that arrive by themselves (G1.1)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

from copilot import tasks
from copilot.chat import follow_ups, sessions, stop, sub_sessions, turns
from copilot.chat.turn_context import MAX_FOLLOW_UPS_IN_A_ROW, ReplyAddress
from copilot.models import Message, OwedResult, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.worker import recovery
from tests.support import factories
from tests.support.turn_engine import cue, ended, fresh, quiet, rows_of, start, status, together, until

RUN, GET = "run_sub_session", "get_sub_session_result"


@pytest.fixture(name="session")
def session_fixture(rig):
    return factories.session()


@pytest.fixture(name="enqueued", autouse=True)
def enqueued_fixture(monkeypatch):
    """Sessions whose delivery was enqueued; the tests deliver when they want to."""
    found = []
    monkeypatch.setattr(tasks.deliver_follow_ups, "apply_async", lambda args, **_: found.append(args[0]))
    return found


def begin(session, model, *, children=1, text="It is dry by noon."):
    """A turn that starts work without waiting and ends; the children wait for cue 1."""
    model.will(*(ScriptedCall(RUN, {"prompt": f"Part {n}", "wait_seconds": 0}) for n in range(children)))
    model.otherwise = lambda request: (
        [cue(1), ScriptedText(text)]
        if str(request.messages[-1]).count("Part ") and "The sub-session" not in str(request.messages[-1])
        else [ScriptedText("Noted.")]
    )
    return ended(start(session))


def finish(session, model):
    model.give(1)
    for child in Session.objects.filter(parent=session):
        quiet(child)


def age(session, seconds=60):
    """Let the endings of the children be older than others could join them."""
    Turn.objects.filter(session__parent=session, ended_at__isnull=False).update(
        created_at=F("created_at") - timedelta(seconds=seconds),
        ended_at=F("ended_at") - timedelta(seconds=seconds),
    )


def make_child(parent, title):
    child = sub_sessions.create_sub_session(parent)
    Session.objects.filter(pk=child.pk).update(title=title)
    return child


def owe(child, run_id, parent):
    """An ended prompt of a child whose result its parent is owed."""
    turn = factories.turn(child, Turn.Status.SUCCEEDED, run_ids=[run_id], parent=parent)
    data = {"parent_turn": str(parent.pk)}
    factories.message(child, turn=turn, sequence=1, run_id=run_id, content="Do", data=data)
    follow_ups.record_owed_result(child.pk, run_id)
    return turn


def deliver(session):
    delivered = follow_ups.deliver_follow_ups(session.pk)
    until(lambda: not Turn.objects.unfinished().filter(session=session).exists())
    return delivered


def follow_up_turns(session):
    return list(Turn.objects.filter(session=session, origin="follow_up").order_by("created_at"))


def outcomes(session):
    return sorted(OwedResult.objects.filter(session=session).values_list("outcome", flat=True))


# --- arrival -----------------------------------------------------------------------------------------


def test_a_child_that_ends_later_wakes_its_parent(session, model, enqueued):
    """G1.1: as a turn of its own, marked with where it came from"""
    first = begin(session, model)
    told = json.loads(Message.objects.get(turn=first, kind="tool_result").content)
    assert told["status"] in ("queued", "running")
    assert "by itself" in told["note"]
    finish(session, model)
    assert str(session.pk) in enqueued
    age(session)
    assert deliver(session)
    [turn] = follow_up_turns(session)
    assert turn.status == "succeeded"
    message = Message.objects.get(turn=turn, kind="user")
    assert (message.origin, message.author) == ("follow_up", "Result of sub-session: Part 0")
    assert "It is dry by noon." in message.content
    assert str(Session.objects.get(parent=session).pk) in message.content
    [shown] = [row for row in rows_of(fresh(session)) if row.id == str(message.pk)]
    assert shown.origin == "follow_up"
    assert outcomes(session) == ["delivered"]


def test_fifty_that_end_together_arrive_in_one_turn(session, model, enqueued):
    """G1.1: fifty at once, delivered by fifty processes"""
    parent = begin(session, model, children=0)
    children = [make_child(session, f"Part {n}") for n in range(50)]
    for number, child in enumerate(children):
        owe(child, f"r{number}", parent)
    age(session)
    assert sum(together(*[lambda: follow_ups.deliver_follow_ups(session.pk)] * 8)) == 1
    quiet(session)
    [turn] = follow_up_turns(session)
    message = Message.objects.get(turn=turn, kind="user")
    assert message.author == "Results of 50 sub-sessions"
    assert message.content.count("The sub-session") == 50
    assert outcomes(session) == ["delivered"] * 50


def test_a_result_waits_a_moment_for_others(session, model):
    """G1.1: the one that ends last delivers all"""
    begin(session, model, children=2)
    finish(session, model)
    Turn.objects.filter(session__parent=session).update(ended_at=Now() + timedelta(hours=1))
    assert not deliver(session)
    assert outcomes(session) == ["", ""]
    age(session, 7200)
    assert deliver(session)
    assert len(follow_up_turns(session)) == 1


def test_what_a_call_returned_does_not_arrive_again(session, model):
    """G1.1: exactly once, also where the model asked before"""
    model.will(ScriptedCall(RUN, {"prompt": "Look"}))
    model.will(ScriptedText("Dry."))
    ended(start(session))
    age(session)
    assert not deliver(session)
    assert outcomes(session) == ["reported"]
    assert follow_up_turns(session) == []


def test_a_busy_parent_gets_the_result_after_its_turn(session, model, enqueued):
    """G1.1: a call of the running turn may be about to return it"""
    begin(session, model)
    model.will(cue(5), ScriptedText("Busy."))
    busy = start(session, "And now?")
    model.reaches(5)
    finish(session, model)
    age(session)
    assert not follow_ups.deliver_follow_ups(session.pk)
    enqueued.clear()
    model.give(5)
    ended(busy)
    assert enqueued == [str(session.pk)]
    assert deliver(session)
    assert len(follow_up_turns(session)) == 1


def test_a_grandchilds_result_reaches_the_top(session, model):
    """G1.1: what a child makes of it is owed to the child's parent"""
    top = begin(session, model, children=0)
    child = make_child(session, "Child")
    own = factories.turn(child, Turn.Status.SUCCEEDED, run_ids=["c"], parent=top)
    grandchild = make_child(child, "Grandchild")
    owe(grandchild, "g", own)
    age(child)
    assert deliver(child)
    assert outcomes(session) == [""]
    age(session)
    assert deliver(session)
    assert "Noted." in Message.objects.get(turn=follow_up_turns(session)[0], kind="user").content


# --- nobody is woken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["archived", "deleted"])
def test_a_closed_parent_is_not_woken(session, model, how):
    """G1.1: archived or deleted meanwhile"""
    begin(session, model)
    finish(session, model)
    age(session)
    if how == "archived":
        sessions.update_session(session.owner_id, session.pk, archived=True)
    else:
        Session.objects.filter(pk=session.pk).update(deleted_at=Now())
    assert not follow_ups.deliver_follow_ups(session.pk)
    assert outcomes(session) == ["dropped"]
    assert follow_up_turns(session) == []


def test_a_stopped_parent_is_not_woken(session, model):
    """G1.1: the stop came while a later turn ran"""
    begin(session, model)
    model.will(cue(5), ScriptedText("Busy."))
    busy = start(session, "And now?")
    model.reaches(5)
    stop.stop_session(session.owner_id, session.pk)
    until(lambda: status(busy) == "cancelled")
    finish(session, model)
    age(session)
    assert not deliver(session)
    assert outcomes(session) == ["dropped"]


def test_follow_ups_in_a_row_end(session):
    """G1.1: turns that only answer each other cannot go on for ever"""
    turn = factories.turn(session, Turn.Status.SUCCEEDED, origin="follow_up")
    for number, can_wait in ((MAX_FOLLOW_UPS_IN_A_ROW - 1, True), (MAX_FOLLOW_UPS_IN_A_ROW, False)):
        turn.inbound_context = {"follow_ups": number}
        assert turns.get_turn_channel(turn).async_delivery is can_wait


# --- crashes -----------------------------------------------------------------------------------------


def test_the_sweep_delivers_what_a_lost_worker_left(session, model):
    """G1.1: the worker died between the child's end and the parent's turn"""
    begin(session, model)
    finish(session, model)
    assert recovery.deliver_lost_results() == 0  # its own task may still come
    age(session)
    assert recovery.deliver_lost_results() == 1
    quiet(session)
    assert recovery.deliver_lost_results() == 0
    assert len(follow_up_turns(session)) == 1


def test_a_crash_after_the_message_is_stored_loses_nothing(session, model, monkeypatch):
    """G1.1: the message is started by the sweep of queued messages, and delivered once"""
    begin(session, model)
    finish(session, model)
    age(session)

    def die(*_):
        raise SystemExit

    monkeypatch.setattr(follow_ups, "_start_or_queue", die)
    with pytest.raises(SystemExit):
        follow_ups.deliver_follow_ups(session.pk)
    monkeypatch.undo()
    assert follow_up_turns(session) == []
    assert not follow_ups.deliver_follow_ups(session.pk)
    assert recovery.start_stranded_session(session.pk)
    quiet(session)
    assert len(follow_up_turns(session)) == 1


def test_a_crash_before_the_commit_repeats_nothing(session, model, monkeypatch):
    """G1.1"""
    begin(session, model)
    finish(session, model)
    age(session)
    monkeypatch.setattr(follow_ups.messages, "insert_message", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        follow_ups.deliver_follow_ups(session.pk)
    monkeypatch.undo()
    assert outcomes(session) == [""]
    assert recovery.deliver_lost_results() == 1
    quiet(session)
    assert len(follow_up_turns(session)) == 1


def test_the_end_of_a_turn_and_of_its_child_at_once_deliver_once(session, model, enqueued):
    """G1.1: whichever ends last enqueues the delivery that finds both"""
    model.will(ScriptedCall(RUN, {"prompt": "Part 0", "wait_seconds": 0}))
    model.otherwise = lambda request: [cue(1), ScriptedText("Both.")]
    turn_id = start(session)
    model.reaches(1)
    model.give(1)
    ended(turn_id)
    finish(session, model)
    age(session)
    assert str(session.pk) in enqueued
    delivered = deliver(session)
    assert outcomes(session) == ["delivered" if delivered else "reported"]  # the call may have seen the end
    assert len(follow_up_turns(session)) == delivered


# --- other channels ----------------------------------------------------------------------------------


def test_a_chat_platform_gets_the_result_where_it_asked(session, model):
    """G1.1, A-L16.2: with the address of the turn that started the work"""
    begin(session, model)
    finish(session, model)
    age(session)
    reply = ReplyAddress(
        platform="telegram",
        conversation_id="c1",
        container="7",
        of_payer=True,
        async_delivery=True,
        interactive=False,
    )
    Turn.objects.filter(session=session).update(
        origin="telegram",
        inbound_context={"locale": "de", "reply": vars(reply)},
    )
    follow_ups.deliver_follow_ups(session.pk)
    [turn] = follow_up_turns(session)
    assert turn.inbound_context["reply"]["conversation_id"] == "c1"
    assert turn.inbound_context["locale"] == "de"
    assert not turns.get_turn_channel(turn).interactive
    quiet(session)


def test_where_nothing_can_be_delivered_later_the_call_waits_for_the_end(session, model):
    """G1.1: stateless completions; the answer says so, and its children wait as well"""
    model.will(ScriptedCall(RUN, {"prompt": "Look", "wait_seconds": 0}))
    model.will(ScriptedText("Dry."))
    turn = ended(start(session, origin="api"))
    told = json.loads(Message.objects.get(turn=turn, kind="tool_result").content)
    assert (told["status"], told["text"]) == ("succeeded", "Dry.")
    assert "cannot be delivered" in told["note"]
    assert not OwedResult.objects.exists()
    [child] = Turn.objects.filter(session__parent=session)
    assert not turns.get_turn_channel(child).async_delivery
