"""Work handed to a conversation of its own, and what its parent learns of it (A21)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from config.core.db import run_in_thread
from config.core.errors import ServiceUnavailable, TooManyRequests
from copilot.chat import admission, approval_decisions, approvals, stop, sub_sessions, turn_results
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import UNRESTRICTED, Permissions
from copilot.models import Approval, Message, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from copilot.realtime.fanout import EventFanout
from copilot.realtime.payloads import AutoApprovePayload
from copilot.tools.builtin import (
    get_sub_session_result,
    run_agent,
    run_sub_session,
    sub_session_tools,
    view_agent_output,
)
from copilot.tools.builtin.get_sub_session_result import GetSubSessionResult
from copilot.tools.builtin.run_sub_session import RunSubSession
from tests.support import factories
from tests.support.rest_clients import V1, program
from tests.support.tool_calls import TURN_CONTEXT
from tests.support.turn_engine import (
    Errand,
    add_tools,
    cue,
    ended,
    endings,
    fresh,
    quiet,
    start,
    status,
    told,
    until,
)

RUN, GET = "run_sub_session", "get_sub_session_result"


@pytest.fixture(name="session")
def session_fixture(rig):
    return factories.session()


def run(prompt="Look into it", **arguments):
    return ScriptedCall(RUN, {"prompt": prompt, **arguments})


def child_of(session):
    return Session.objects.get(parent=session)


def results(turn, tool=RUN):
    """What the calls of a tool answered, as text."""
    rows = Message.objects.filter(turn=turn, kind="tool_result", data__tool=tool).order_by("sequence")
    return list(rows.values_list("content", flat=True))


def result(turn, tool=RUN):
    return json.loads(results(turn, tool)[-1])


def called(session, *, model, tool=GET, **arguments):
    """One turn that makes this call."""
    model.will(ScriptedCall(tool, arguments))
    return ended(start(session))


def narrow(**fields):
    return replace(UNRESTRICTED, **fields)


# --- statuses ----------------------------------------------------------------------------------------


def test_a_child_answers_and_its_parent_reads_the_text(session, model):
    """A21.c1, A21.2, A21.5: success"""
    model.will(run(context="The deck is wet."))
    model.will(ScriptedText("It is dry by noon."))
    turn = ended(start(session))
    child = child_of(session)
    assert (child.depth, child.root_id, child.owner_id) == (1, session.pk, session.owner_id)
    told_of = result(turn)
    assert told_of["status"] == "succeeded"
    assert told_of["text"] == "It is dry by noon."
    assert told_of["link"].endswith(f"/chat/{child.pk}/")
    assert "The deck is wet." in Message.objects.get(session=child, kind="user").content
    assert Turn.objects.get(session=child).parent_id == turn.pk
    assert Turn.objects.get(session=child).budget_microdollars == 200_000
    assert Message.objects.get(turn=turn, kind="tool_result").data["session_id"] == str(child.pk)


def test_a_failed_child_gives_its_code_and_words(session, model):
    """A21.c1, A21.4: error, at once and later; read from the turn, not guessed from its words"""
    model.will(run())
    model.will(ScriptedFailure("auth_failed"))
    first = result(ended(start(session)))
    assert first["status"] == "failed"
    assert first["error"]["code"] == "auth_failed"
    assert first["error"]["message"]
    later = result(called(session, model=model, session_id=str(child_of(session).pk)), GET)
    assert later["error"] == first["error"]


def test_a_stopped_child_says_that_a_person_did_it(session, model):
    """A21.c1, A21.4: stop"""
    model.will(run())
    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    stop.stop_session(session.owner_id, child_of(session).pk)
    told_of = result(ended(turn_id))
    assert (told_of["status"], told_of["cancelled_by"]) == ("cancelled", "a person")
    assert told_of["text"] == "Half"


def test_a_paused_child_is_waiting(session, model, monkeypatch):
    """A21.c1, A21.9: it says where; the decision is made in the child, which then continues"""
    pay = Errand("pay", approval="ask")
    add_tools(monkeypatch, pay)
    model.will(run(wait_seconds=60))
    model.will(ScriptedCall("pay"))
    told_of = result(ended(start(session)))
    child = child_of(session)
    assert (told_of["status"], told_of["session_id"]) == ("waiting", str(child.pk))
    assert told_of["link"].endswith(f"/{child.pk}/")
    assert "approve" in told_of["note"]
    [request] = Approval.objects.filter(turn__session=child)
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=request.pk, decision="approve")]
    )
    quiet(child)
    assert pay.runs == 1
    assert {event.child for event in told(child.pk, "session.changed")} == {True}  # lists leave it out
    assert result(called(session, model=model, session_id=str(child.pk)), GET)["status"] == "succeeded"


@pytest.mark.parametrize(("asked", "waits"), [(10**6, 300), (-5, 0), (7, 7)])
def test_a_wait_beyond_the_limits_is_clamped(asked, waits):
    """A21.1"""
    assert RunSubSession(prompt="Look", wait_seconds=asked).wait_seconds == waits
    assert GetSubSessionResult(session_id="x", wait_seconds=asked).wait_seconds == waits


def test_not_being_able_to_look_is_an_error_and_no_status(session, model, monkeypatch):
    """A21.4: it is never taken for running"""
    child = sub_sessions.create_sub_session(session)
    factories.turn(child, Turn.Status.RUNNING)

    async def away(*args, **fields):
        raise ServiceUnavailable

    monkeypatch.setattr(turn_results, "wait_for_turn", away)
    turn = called(session, model=model, session_id=str(child.pk))
    row = Message.objects.get(turn=turn, kind="tool_result")
    assert not row.data["success"]
    assert "running" not in row.content


def test_a_childs_result_is_the_same_after_its_worker_is_gone(session, rig, model):
    """A21.c1: after restart"""
    model.will(run())
    model.will(ScriptedText("Done once."))
    first = result(ended(start(session)))
    rig.worker.leave()
    rig.start_worker()
    again = result(called(session, model=model, session_id=first["session_id"]), GET)
    assert {name: again[name] for name in ("status", "text", "link", "tokens")} == {
        name: first[name] for name in ("status", "text", "link", "tokens")
    }


def test_wait_nothing_returns_at_once_and_is_polled_later(session, model):
    """A21.1, A31.c1: the web"""
    model.will(run(wait_seconds=0))
    model.otherwise = lambda request: (
        [cue(7), ScriptedText("Later.")]
        if "Look into it" in repr(request.messages[0])
        else [ScriptedText("Ok.")]
    )
    turn = ended(start(session))
    told_of = result(turn)
    assert told_of["status"] in ("running", "queued")
    assert "by itself" in told_of["note"]
    model.reaches(7)
    model.give(7)
    assert result(called(session, model=model, session_id=told_of["session_id"]), GET)["text"] == "Later."


def test_without_later_news_the_call_waits_or_says_how_to_poll(session, model, settings):
    """A31.4, A31.c1: the API"""
    settings.TURN_MAX_SECONDS = 21.5  # one second of waiting, and twenty for the answer
    model.will(run(wait_seconds=0))
    model.will(cue(1), ScriptedText("Too late."))
    told_of = result(ended(start(session, origin="api")))
    assert told_of["status"] == "running"
    assert "in this turn" in told_of["note"]
    model.give(1)
    model.will(run(wait_seconds=0))
    model.will(ScriptedText("In time."))
    assert result(ended(start(session, origin="api")))["text"] == "In time."


def test_no_end_is_missed_between_looking_and_listening(session, model, monkeypatch):
    """A21.c1, A21.8: the child ends after it was subscribed to and before it is looked at"""
    follow = EventFanout.subscribe
    left = []

    async def ends_meanwhile(tail, session_id, cursor, listener):
        subscription = await follow(tail, session_id, cursor, listener)
        model.give(1)
        await run_in_thread(until, lambda: Turn.objects.get(session=session_id).status == "succeeded")
        left.append(tail)
        return subscription

    monkeypatch.setattr(EventFanout, "subscribe", ends_meanwhile)
    model.will(run())
    model.will(cue(1), ScriptedText("Just then."))
    assert result(ended(start(session)))["text"] == "Just then."
    assert not left[0]._sessions


@pytest.mark.parametrize("tool", [run_sub_session, get_sub_session_result, run_agent, view_agent_output])
def test_a_wait_is_clamped_so_that_the_call_ends_in_time(tool):
    """A32.c1: wait + 10 over 300, for each tool that waits"""
    given = {"session_id": "x", "prompt": "x", "agent_id": "x", "run_id": "x", "wait_seconds": 9_999}
    kind = tool.TOOL.arguments
    asked = kind.model_validate({name: given[name] for name in kind.model_fields if name in given})
    assert asked.wait_seconds == 300
    assert sub_session_tools.compute_wait_seconds(TURN_CONTEXT, asked.wait_seconds) == 290
    assert sub_session_tools.compute_wait_seconds(TURN_CONTEXT, 7) == 7


# --- limits ------------------------------------------------------------------------------------------


def test_the_fourth_level_is_refused(session, model):
    """A21.c2"""
    for _ in range(3):
        session = sub_sessions.create_sub_session(session)
    turn = called(session, model=model, tool=RUN, prompt="Deeper")
    assert "too_deep" in results(turn)[0]
    assert not Session.objects.filter(parent=session).exists()


def test_five_run_at_once_and_the_sixth_is_refused(session, model):
    """A21.2: counted and accepted in one act, however many calls of one reply begin together"""
    model.will(*(run(f"Part {number}", wait_seconds=0) for number in range(6)))
    model.otherwise = lambda request: (
        [cue(9), ScriptedText("Done.")] if "Part" in repr(request.messages[-1]) else [ScriptedText("Ok.")]
    )
    turn = ended(start(session))
    answers = results(turn)
    assert sum("too_many_sub_sessions" in answer for answer in answers) == 1
    assert Session.objects.filter(parent=session, deleted_at=None).count() == 5
    model.give(9)


def test_foreign_and_random_ids_get_the_same_words(session, model):
    """A21.c2, A21.8: another user's, a sibling's, an own one that is no child, and none at all"""
    others = [
        factories.session(factories.bob()),
        factories.session(),
        sub_sessions.create_sub_session(factories.session()),
        session,
    ]
    answers = {
        results(called(session, model=model, session_id=one), GET)[0]
        for one in [*(str(other.pk) for other in others), str(uuid4()), "nonsense"]
    }
    assert answers == {"Error no_such_sub_session: There is no such sub-session."}


def test_a_turn_that_may_not_start_others_is_not_offered_it(session, model):
    """A20.1, A21.3"""
    ended(start(session, permissions=narrow(sub_sessions=False)))
    assert not {RUN, GET} & {tool.name for tool in model.requests[-1].tools}


def test_a_child_has_no_more_than_its_parent(session, model):
    """A21.3, A20.c1"""
    model.will(run())
    ended(start(session, permissions=narrow(network=False, tools=frozenset({RUN, "read_file", "web_fetch"}))))
    theirs = Permissions.from_json(Turn.objects.get(session=child_of(session)).permissions)
    assert theirs.network is False
    assert {tool.name for tool in model.requests[1].tools} == {RUN, "read_file", "read_tool_result"}


def families_pay(root, monkeypatch, *, sub_sessions):
    """The root runs calls without asking up to 500, and so do its children if it says so; each call is estimated at 400."""
    pay = Errand("pay", approval="ask", billable=True, estimate=lambda given, context: 400)
    add_tools(monkeypatch, pay)
    approvals.set_auto_approve(
        root.owner_id, root.pk, enabled=True, cap_microdollars=500, sub_sessions=sub_sessions
    )
    return pay


def test_a_child_asks_unless_the_user_chose_otherwise(session, model, monkeypatch):
    """A21.3: a conversation's permission to run calls without asking does not extend to its sub-sessions"""
    pay = families_pay(session, monkeypatch, sub_sessions=False)
    model.will(run())
    model.will(ScriptedCall("pay"))
    assert result(ended(start(session)))["status"] == "waiting"
    assert pay.runs == 0
    assert fresh(child_of(session)).auto_approve == AutoApprovePayload()


def test_a_family_that_runs_without_asking_shares_one_cap(session, model, monkeypatch):
    """A21.3: the child's call is paid from the root's cap, and so is its grandchild's, which finds too little left"""
    pay = families_pay(session, monkeypatch, sub_sessions=True)
    model.will(run())
    model.will(ScriptedCall("pay"))
    model.will(run("Deeper"))
    model.will(ScriptedCall("pay"))
    assert result(ended(start(session)))["status"] == "succeeded"
    child = child_of(session)
    grandchild = child_of(child)
    session.refresh_from_db()
    assert (pay.runs, session.auto_approve_spent) == (1, 400)
    (open_request,) = fresh(grandchild).approvals
    assert (open_request.block_reason, open_request.remaining_cap_microdollars) == (
        approvals.OVER_CAP_REASON,
        100,
    )
    assert fresh(child).auto_approve == AutoApprovePayload(enabled=True, cap_microdollars=500, inherited=True)


def test_a_child_gets_no_title_of_its_own(session, rig, model):
    """A18.1, A21.2: nobody is charged for the title of a sub-session, which goes by its prompt"""
    model.will(run())
    model.will(ScriptedText("Found."))
    turn = ended(start(session))
    child = child_of(session)
    assert child.title == "Look into it"
    until(lambda: rig.errands)
    assert [turn_id for kind, turn_id in rig.errands if kind == "title"] == [turn.pk]


def test_nothing_stays_of_a_child_that_may_not_start(session, model, monkeypatch):
    monkeypatch.setattr(admission, "try_place_hold", _refuse_children)
    turn = called(session, model=model, tool=RUN, prompt="Costly")
    assert "Error limit" in results(turn)[0]
    assert not Session.objects.filter(parent=session, deleted_at=None).exists()


def _refuse_children(user_id, turn_id):
    if Session.objects.filter(depth__gt=0).exists():
        raise TooManyRequests("Enough.", code="limit")
    return True


# --- stopping ----------------------------------------------------------------------------------------


def test_a_stopped_parent_stops_what_it_started_and_nothing_older(session, model):
    """A21.c2, A21.6"""
    model.otherwise = lambda request: (
        [cue(5), ScriptedText("Done.")] if "Look into" in repr(request.messages[0]) else [ScriptedText("Ok.")]
    )
    model.will(run(wait_seconds=0))
    older = ended(start(session))
    first = Turn.objects.get(parent=older)
    model.reaches(5)
    model.will(run(wait_seconds=300))
    turn_id = start(session)
    until(lambda: Turn.objects.filter(parent=turn_id, status="running").exists())
    second = Turn.objects.get(parent=turn_id)
    stop.stop_session(session.owner_id, session.pk)
    asked = Turn.objects.get(pk=second.pk)  # the request itself reached the child: no step waits for another
    assert asked.stop_requested_at is not None
    assert ended(turn_id).cancel_reason == "user"
    child = ended(second.pk)
    assert child.ended_at - asked.stop_requested_at < timedelta(seconds=2)
    assert (child.status, child.cancel_reason) == ("cancelled", "parent")
    assert told(second.session_id, "turn.cancelled")[0].reason == "parent"
    assert status(first.pk) == "running"
    model.give(5)
    assert ended(first.pk).status == "succeeded"


def test_a_prompt_that_still_waits_is_dropped_with_its_parent(session, model):
    """A21.6"""
    child = sub_sessions.create_sub_session(session)
    model.will(cue(1), ScriptedText("Busy."))
    start(child)
    model.reaches(1)
    model.will(run(session_id=str(child.pk), wait_seconds=300))
    turn_id = start(session)
    until(lambda: Message.objects.filter(session=child, sequence=None).exists())
    stop.stop_session(session.owner_id, session.pk)
    assert ended(turn_id).status == "cancelled"
    assert not Message.objects.filter(session=child, sequence=None, dropped_at=None).exists()
    model.give(1)
    quiet(child)
    assert sorted(endings(child.pk)) == ["turn.cancelled", "turn.succeeded"]


def test_cancelling_answers_cancelled_or_the_end_that_came_first(session, model):
    """A21.6"""
    model.otherwise = lambda request: (
        [ScriptedText("Half"), cue(3)] if "Look into" in repr(request.messages[0]) else [ScriptedText("Ok.")]
    )
    model.will(run(wait_seconds=0))
    turn = ended(start(session))
    child_id = result(turn)["session_id"]
    model.reaches(3)
    stopped = result(called(session, model=model, session_id=child_id, cancel=True), GET)
    assert (stopped["status"], stopped["cancelled_by"]) == ("cancelled", "the parent")
    again = result(called(session, model=model, session_id=child_id, cancel=True, include_progress=True), GET)
    assert again["status"] == "cancelled"
    assert again["last_rows"][0] == {"kind": "user", "text": "Look into it"}
    assert again["rows"] >= 2


# --- a busy child ------------------------------------------------------------------------------------


def test_a_prompt_behind_other_work_brings_only_its_own_text(session, model):
    """A21.c3, A21.7"""
    child = sub_sessions.create_sub_session(session)
    model.will(ScriptedText("Earlier words."), cue(1))
    start(child)
    model.reaches(1)
    model.will(run("And then?", session_id=str(child.pk)))
    turn_id = start(session)
    until(lambda: Message.objects.filter(session=child, sequence=None).exists())
    model.will(ScriptedText("Later words."))
    model.give(1)
    told_of = result(ended(turn_id))
    assert (told_of["status"], told_of["text"]) == ("succeeded", "Later words.")
    rider = Turn.objects.filter(session=child).latest("created_at")
    assert (rider.parent_id, rider.budget_microdollars) == (turn_id, 200_000)


def test_work_that_may_do_more_lets_no_other_prompt_wait_behind_it(session, model):
    """A21.7"""
    child = sub_sessions.create_sub_session(session)
    model.will(cue(1))
    busy = start(child)
    model.reaches(1)
    model.will(run(session_id=str(child.pk)))
    refused = ended(start(session, permissions=narrow(network=False)))
    assert "busy_other_permissions" in results(refused)[0]
    model.give(1)
    ended(busy)


def test_a_long_wait_beats_and_is_not_taken_for_a_hang(session, model, settings):
    """A21.c3: the seconds are scaled, their order is not"""
    settings.HEARTBEAT_SECONDS = 0.5
    model.will(run(wait_seconds=300))
    model.will(cue(1), ScriptedText("At last."))
    turn_id = start(session)
    until(lambda: len(told(session.pk, "turn.heartbeat")) >= 2)
    assert told(session.pk, "turn.heartbeat")[-1].phase == "tool"
    model.give(1)
    assert ended(turn_id).status == "succeeded"


# --- lists -------------------------------------------------------------------------------------------


def test_lists_leave_children_out_unless_their_parent_is_named(db):
    parent = factories.session(title="Parent")
    child = sub_sessions.create_sub_session(parent)
    client = program(factories.ada())
    assert [one["id"] for one in client.get(f"{V1}/sessions").json()["items"]] == [str(parent.pk)]
    [listed] = client.get(f"{V1}/sessions?parent={parent.pk}").json()["items"]
    assert (listed["id"], listed["parent_id"]) == (str(child.pk), str(parent.pk))
