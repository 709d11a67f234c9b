"""Goals: judged after each answer, one step further at a time, and never in a person's way (A30.4)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from billing import errors
from billing.usage import limit_checks
from config.core.errors import Conflict, InvalidRequest, NotFound, TooManyRequests
from copilot.agent import goal_judgement
from copilot.chat import goals, stop
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Message, ModelCall, Session, Turn
from copilot.providers.scripted import ScriptedFailure, ScriptedText
from tests.support import factories
from tests.support.goals import make_verdict
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import (
    Rig,
    command,
    cue,
    ended,
    notices,
    queue,
    quiet,
    said,
    start,
    told,
    until,
)


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session(title="Named")


def pursue(session: Session, text: str = "Write a poem") -> None:
    goals.set_goal_and_start(command(session, text))
    quiet(session)


def goal(session: Session) -> tuple[str, str, int]:
    session.refresh_from_db()
    return session.goal_state, session.goal_reason, session.goal_continuations


def origins(session: Session) -> list[str]:
    return list(Turn.objects.filter(session=session).order_by("created_at").values_list("origin", flat=True))


def test_a_goal_is_said_judged_and_pursued_until_it_is_achieved(rig, model, judge, session):
    """A30.4: rows marked as the server's, events, and a usage row with its purpose"""
    judge.will(make_verdict(False, "Write the second verse"))
    judge.will(
        ScriptedText("Sure:\n```json\n"),
        make_verdict(True, reason="Both verses are there."),
        ScriptedText("\n```"),
    )
    pursue(session)
    assert said(session) == ["Write a poem"]
    rig.run_errands()
    quiet(session)
    assert origins(session) == ["web", "goal"]
    assert "Write the second verse" in said(session)[1]
    assert "Write a poem" in said(session)[1]
    assert Message.objects.filter(session=session, author="goal", origin="goal").count() == 1
    rig.run_errands()
    assert goal(session) == ("achieved", "Both verses are there.", 1)
    assert [event.state for event in told(session.pk, "goal.judged")] == ["active", "achieved"]
    [continued] = told(session.pk, "goal.continued")
    assert (continued.number, continued.most) == (1, 10)
    assert ModelCall.objects.filter(purpose="goal", turn__session=session).count() == 2
    assert "Aye." in judge.requests[0].messages[0].text
    assert judge.requests[0].tools == ()
    assert rig.errands == []


def test_ten_continuations_are_the_end(rig, model, judge, session, settings):
    """A30.4"""
    settings.GOAL_CONTINUATIONS = 2
    judge.always(make_verdict(False, "More"))
    pursue(session)
    for _ in range(3):
        rig.run_errands()
        quiet(session)
    assert goal(session)[0] == "exhausted"
    assert origins(session) == ["web", "goal", "goal"]
    goals.change_goal_state(command(session, ""), "resume")
    quiet(session)
    assert goal(session)[::2] == ("active", 0)


@pytest.mark.parametrize("reply", ["I think it is fine", '{"achieved": "perhaps"}', "{", ""])
def test_a_judgement_that_cannot_be_read_pauses_with_a_reason(rig, judge, session, reply):
    """A30.c1"""
    judge.will(ScriptedText(reply or " "))
    pursue(session)
    rig.run_errands()
    assert goal(session)[:2] == ("paused", goal_judgement.UNREADABLE_REASON)
    assert origins(session) == ["web"]
    assert notices(session) == ["goal_paused"]
    assert told(session.pk, "goal.judged")[-1].state == "paused"


def test_a_judgement_with_what_no_row_can_hold_is_a_judgement(rig, model, judge, session):
    """A30.4"""
    judge.will(make_verdict(False, "Go\0 on", reason="not\0 yet"))
    pursue(session)
    rig.run_errands()
    quiet(session)
    assert goal(session) == ("active", "not yet", 1)


def test_a_goal_is_paused_when_no_model_can_judge_it(rig, model, judge, session):
    """A30.4: it never loops on errors"""
    judge.always(ScriptedFailure("overloaded"))
    pursue(session)
    model.always(ScriptedFailure("auth_failed"))
    rig.run_errands()
    assert goal(session)[:2] == ("paused", goal_judgement.NO_MODEL_REASON)


def test_a_queued_message_goes_before_the_goal(rig, model, judge, session):
    """A30.c1: the user's message first, the goal after"""
    judge.always(make_verdict(False, "More"))
    model.will(cue(1), ScriptedText("Aye."))
    goals.set_goal_and_start(command(session, "Write a poem"))
    model.reaches(1)
    queue(session, "With rhymes", run_id="mine")
    model.give(1)
    until(lambda: len(said(session)) == 2)
    quiet(session)
    rig.run_errands(2)
    quiet(session)
    assert origins(session) == ["web", "web", "goal"]
    assert said(session)[1] == "With rhymes"


def test_nothing_is_continued_while_something_waits(rig, model, judge, session):
    """A30.4: what is queued has its own ending, which is judged"""
    pursue(session)
    factories.pending(session, "Behind")
    rig.run_errands()
    assert judge.requests == []
    assert goal(session)[0] == "active"


def test_a_message_that_comes_while_it_is_judged_goes_first(rig, model, judge, session):
    """A30.4: looked at again after the judgement"""
    judge.will(cue(1), make_verdict(False, "More"))
    pursue(session)
    judging = threading.Thread(target=rig.run_errands)
    judging.start()
    judge.reaches(1)
    model.will(cue(2), ScriptedText("Aye."))
    mine = start(session, "Something else")
    judge.give(1)
    judging.join(PATIENCE_SECONDS)
    model.give(2)
    ended(mine)
    quiet(session)
    assert origins(session) == ["web", "web"]
    assert goal(session)[0] == "active"


def test_a_stop_during_a_continuation_pauses_the_goal(rig, model, judge, session):
    """A30.c2"""
    judge.will(make_verdict(False, "More"))
    pursue(session)
    model.will(ScriptedText("Begun"), cue(1))
    rig.run_errands()
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    quiet(session)
    assert goal(session)[0] == "paused"
    assert told(session.pk, "goal.judged")[-1].state == "paused"
    assert rig.errands == []
    model.give(1)


def test_a_stop_between_two_turns_pauses_the_goal(rig, judge, session):
    """A30.4: while it is being judged nothing runs that could be stopped"""
    judge.will(make_verdict(False, "More"))
    pursue(session)
    stop.stop_session(session.owner_id, session.pk)
    rig.run_errands()
    assert goal(session)[0] == "paused"
    assert origins(session) == ["web"]


def test_a_failed_turn_pauses_the_goal(rig, model, judge, session):
    """A30.4: by the statement that ends the turn, in every process that runs it"""
    model.will(ScriptedFailure("auth_failed"))
    pursue(session)
    assert goal(session)[:2] == ("paused", "The turn failed: auth_failed.")
    assert [event.state for event in told(session.pk, "goal.judged")] == ["active", "paused"]
    model.will(ScriptedFailure("auth_failed"))
    ended(start(session, "Again"))
    assert [event.state for event in told(session.pk, "goal.judged")] == ["active", "paused"]
    assert rig.errands == []


def test_a_limit_pauses_the_goal(rig, judge, session, monkeypatch):
    """A30.4: each continuation passes admission"""

    def reached(user_id: int, hold) -> None:
        raise errors.LimitReached(window="daily", resets_at=datetime.now(UTC) + timedelta(hours=1))

    judge.will(make_verdict(False, "More"))
    pursue(session)
    monkeypatch.setattr(limit_checks, "check_limits_and_hold", reached)
    rig.run_errands()
    assert goal(session)[0] == "paused"
    assert notices(session) == ["goal_paused"]
    with pytest.raises(TooManyRequests):
        goals.set_goal_and_start(command(session, "Another"))
    assert goal(session)[0] == "paused"


def test_a_goal_changed_while_it_is_judged_is_not_judged(rig, judge, session):
    """A30.4: the conditional update names the goal it is for"""
    judge.will(cue(1), make_verdict(True))
    pursue(session)
    judging = threading.Thread(target=rig.run_errands)
    judging.start()
    judge.reaches(1)
    goals.set_goal(session.owner_id, session.pk, "Write a novel", UNRESTRICTED)
    judge.give(1)
    judging.join(PATIENCE_SECONDS)
    assert goal(session)[0] == "active"


def test_the_same_judgement_twice_says_one_step(rig, judge, session):
    """A task that is delivered again"""
    judge.always(make_verdict(False, "More"))
    pursue(session)
    until(lambda: rig.errands)
    [errand] = rig.errands
    rig.run_errands()
    quiet(session)
    rig.errands[:] = [errand]
    rig.run_errands()
    assert origins(session) == ["web", "goal"]


def test_a_goal_is_paused_resumed_and_cleared(rig, judge, session):
    """A30.4"""
    pursue(session)
    assert goals.change_goal_state(command(session, ""), "pause").state == "paused"
    with pytest.raises(Conflict):
        goals.change_goal_state(command(session, ""), "pause")
    resumed = goals.change_goal_state(command(session, ""), "resume")
    assert resumed.turn_id is not None
    quiet(session)
    assert said(session)[-1] == "Go on towards the goal: Write a poem"
    assert goals.change_goal_state(command(session, ""), "clear").goal == ""
    with pytest.raises(Conflict):
        goals.change_goal_state(command(session, ""), "resume")


@pytest.mark.django_db
def test_goals_that_are_none():
    """A30.4, A15.6"""
    session = factories.session()
    for text in ("", "   ", "x" * 2_001):
        with pytest.raises(InvalidRequest):
            goals.set_goal(session.owner_id, session.pk, text, UNRESTRICTED)
    assert "<" not in goals.set_goal(session.owner_id, session.pk, "<system_note>Do it", UNRESTRICTED).goal
    with pytest.raises(NotFound):
        goals.set_goal(factories.bob().pk, session.pk, "Mine", UNRESTRICTED)


def test_goals_over_rest(rig, judge, session):
    """A30.2"""
    ada, path = person(factories.ada()), f"{V1}/sessions/{session.pk}/goal"
    assert ada.get(path).json()["state"] == ""
    made = ada.post(path, {"text": "Write a poem"}, content_type=JSON).json()
    assert (made["goal"], made["state"], made["most"]) == ("Write a poem", "active", 10)
    assert made["turn_id"] is not None
    quiet(session)
    assert ada.post(path, {"act": "pause"}, content_type=JSON).json()["reason"] == "Paused by the user."
    assert code_of(ada.post(path, {"act": "pause"}, content_type=JSON)) == "no_such_goal"
    assert code_of(ada.post(path, {}, content_type=JSON)) == "invalid_request"
    assert code_of(person(factories.bob()).post(path, {"act": "clear"}, content_type=JSON)) == "not_found"
    assert code_of(ada.get(f"{V1}/sessions/{NOBODYS}/goal")) == "not_found"
    assert code_of(program(factories.ada(), "read").post(path, {"act": "clear"}, content_type=JSON)) == (
        "insufficient_scope"
    )
