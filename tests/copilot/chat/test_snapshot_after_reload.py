"""A reload shows what the page showed before it: the goal and how full the context is (A17.8, A33.c5)."""

from __future__ import annotations

from copilot.chat import branches, goals
from copilot.chat.permissions import UNRESTRICTED
from copilot.providers.scripted import ScriptedText, ScriptedUsage
from copilot.realtime.payloads import ContextPayload, GoalPayload, Tokens
from tests.support import factories
from tests.support.compaction import request_compaction
from tests.support.turn_engine import assert_same_page, ended, folded, fresh, quiet, start


def seen_live(session):
    """By somebody who watched from the beginning."""
    return folded(fresh(factories.session()), session)


def test_the_context_is_shown_as_the_last_turn_left_it_and_an_estimate_is_flagged(rig, model):
    """A17.8: counted by the provider, then estimated after a summary, until the next real reply"""
    session = factories.session()
    model.will(ScriptedText("Long. " * 50), ScriptedUsage(Tokens(input=49_000, cache_read=900, output=100)))
    ended(start(session, "Tell me"))
    quiet(session)
    assert fresh(session).context == ContextPayload(used_percent=25.0, estimated=False)
    assert_same_page(seen_live(session), fresh(session))
    model.will(ScriptedText("A summary."))
    request_compaction(session.owner, session)
    quiet(session)
    assert fresh(session).context.estimated
    assert_same_page(seen_live(session), fresh(session))
    model.will(ScriptedText("Short."), ScriptedUsage(Tokens(input=1_900, output=100)))
    ended(start(session, "Go on"))
    quiet(session)
    assert (
        seen_live(session).context
        == fresh(session).context
        == ContextPayload(used_percent=1.0, estimated=False)
    )


def test_the_current_goal_is_shown(rig, model):
    """A33.c5, A30.4: set, paused with its reason, taken up again, cleared"""
    session = factories.session()
    goals.set_goal(session.owner_id, session.pk, "Paint the boat", UNRESTRICTED)
    goals.pause_goal(session.owner_id, session.pk, "Rain.")
    assert fresh(session).goal == GoalPayload(text="Paint the boat", state="paused", reason="Rain.")
    assert_same_page(seen_live(session), fresh(session))
    goals.resume_goal(session.owner_id, session.pk)
    assert_same_page(seen_live(session), fresh(session))
    goals.clear_goal(session.owner_id, session.pk)
    assert seen_live(session).goal is fresh(session).goal is None


def test_an_undone_turn_pauses_the_goal_it_worked_for(rig, model):
    """A30.4, A30.5: what was judged is gone, so the person has the next word"""
    session = factories.session()
    ended(start(session, "Paint it"))
    quiet(session)
    goals.set_goal(session.owner_id, session.pk, "Paint the boat", UNRESTRICTED)
    branches.undo_last_turn(session.owner_id, session.pk)
    goal = fresh(session).goal
    assert (goal.state, goal.reason) == ("paused", "The last turn was undone.")
    assert_same_page(seen_live(session), fresh(session))
