"""However a turn is started, it passes the same admission and is bound to the channel it came by (A3.10, A31.3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User

from config.core.errors import Forbidden
from copilot.chat import approval_decisions, goals, next_turn
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Approval, Message, Schedule, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.schedules import runner
from copilot.schedules import services as schedules
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person, program
from tests.support.turn_engine import (
    Errand,
    add_tools,
    command,
    cue,
    ended,
    lease_of,
    queue,
    quiet,
    start,
    told,
    until,
    waiting,
)


@pytest.fixture
def session(rig):
    return factories.session()


def suspend() -> None:
    User.objects.filter(username="ada").update(is_active=False)


def turns_of(session) -> int:
    return Turn.objects.filter(session=session).count()


# --- an account that was suspended meanwhile ---------------------------------------------------------


def test_a_message_and_an_edit_are_refused(session):
    """A3.10: a user's turn"""
    suspend()
    with pytest.raises(Forbidden, match="not active"):
        start(session)
    assert turns_of(session) == 0


def test_what_waited_in_the_queue_stays_there(session, model):
    """A3.10: a turn from the queue; it runs when the account is active again"""
    model.will(ScriptedText("First."), cue(1))
    turn_id = start(session, "One")
    model.reaches(1)
    queue(session, "Two", run_id="mine")
    suspend()
    model.give(1)
    ended(turn_id)
    until(lambda: lease_of(session) == {})
    assert (waiting(session), turns_of(session)) == (["Two"], 1)
    User.objects.filter(username="ada").update(is_active=True)
    assert next_turn.start_stranded_messages(session.pk)
    quiet(session)
    assert (waiting(session), turns_of(session)) == ([], 2)


def test_a_paused_turn_is_not_resumed(session, model, monkeypatch):
    """A3.10: a resumed turn; the decision is not taken, and the request stays open"""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedCall("pay"))
    start(session)
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    suspend()
    [asked] = Approval.objects.all()
    with pytest.raises(Forbidden, match="not active"):
        approval_decisions.decide_approvals(
            session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
        )
    asked.refresh_from_db()
    assert (asked.state, Turn.objects.get(session=session).status) == ("requested", "waiting")


def test_a_goal_is_not_continued(rig, model, small, session):
    """A3.10: the server's own turn"""
    small.always(ScriptedText(json.dumps({"achieved": False, "reason": "no", "next_step": "More"})))
    goals.set_goal_and_start(command(session, "Write a poem"))
    quiet(session)
    suspend()
    rig.run_errands()
    session.refresh_from_db()
    assert (session.goal_state, turns_of(session)) == ("paused", 1)


def test_a_schedule_does_not_run(session):
    """A3.10, A26.3: a scheduled turn"""
    asked = schedules.ScheduleRequest(prompt="Look", cron="0 8 * * *", timezone="UTC", session_id=session.pk)
    task = schedules.create_schedule(session.owner_id, asked, UNRESTRICTED)
    Schedule.objects.filter(pk=task.pk).update(next_run=datetime.now(UTC) - timedelta(minutes=1))
    suspend()
    assert runner.run_due_schedules() == 0
    assert turns_of(session) == 0


def test_a_parent_starts_no_child(session, model):
    """A3.10, A21.2: another turn's turn"""
    model.will(ScriptedText("First."), cue(1), ScriptedCall("run_sub_session", {"prompt": "Look into it"}))
    turn_id = start(session)
    model.reaches(1)
    suspend()
    model.give(1)
    ended(turn_id)
    result = Message.objects.get(turn=turn_id, kind="tool_result")
    assert not result.data["success"]
    assert Turn.objects.count() == 1


# --- the channel -------------------------------------------------------------------------------------


def test_every_rest_endpoint_that_starts_a_turn_binds_it_to_the_api(session, model):
    """A31.3: a message, an edit, a retry, a goal, a summary, and what was sent now"""
    door, base = program(factories.ada()), f"{V1}/sessions/{session.pk}"

    def post(path: str, body: dict[str, object]) -> None:
        answer = door.post(f"{base}/{path}", body, content_type=JSON)
        assert answer.status_code in (200, 201, 202), (path, answer.content)
        quiet(session)

    post("messages", {"text": "One"})
    first = Message.objects.get(session=session, kind="user")
    post("branches", {"act": "edit", "message_id": str(first.pk), "text": "Uno"})
    post("goal", {"text": "Write a poem"})
    post("compact", {})
    assert Turn.objects.filter(session=session).count() == 4
    assert set(Turn.objects.values_list("origin", flat=True)) == {"api"}


def test_a_channel_that_declared_nothing_starts_nothing(session):
    """A31.c1, A31.3: told at once, not by a worker that does not know what it may do"""
    with pytest.raises(LookupError, match="pigeon"):
        start(session, origin="pigeon")
    assert not Message.objects.exists()


def test_a_page_without_a_script_is_the_web(session, model):
    """A31.3"""
    person(factories.ada()).post(f"/chat/{session.pk}/send/", {"text": "One"})
    quiet(session)
    assert set(Turn.objects.values_list("origin", flat=True)) == {"web"}
