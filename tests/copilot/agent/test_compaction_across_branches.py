"""Undo, edit and switch across summaries: the model's start falls back to what still holds (A30.5, A30.c2)."""

from __future__ import annotations

import pytest

from copilot.chat import message_history
from copilot.models import Message
from copilot.providers.request_validation import find_request_problems
from copilot.providers.scripted import ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.branches import hold_conversation, resend_and_wait, switch_branch, undo_last_turn
from tests.support.compaction import fill_context
from tests.support.turn_engine import ended, quiet, start, transcript


@pytest.fixture
def session(rig, model, small_window, fetch):
    """Three turns; in the second the conversation became short: a summary covers the first and half of it."""
    session = factories.session()
    hold_conversation(session, "One")
    fill_context(model)
    model.will(ScriptedText("They counted."), ScriptedUsage(Tokens(input=80_000)))
    model.will(ScriptedText("Two it is."), ScriptedUsage(Tokens(input=100)))
    ended(start(session, "Two"))
    quiet(session)
    hold_conversation(session, "Three")
    return session


def read(session):
    return [row.kind for row in message_history.list_rows_for_model(session.pk)]


def said(model):
    """What the last request tells the model; it suits every provider."""
    assert find_request_problems(model.requests[-1]) == []
    return model.said_to()


def test_undo_of_a_turn_inside_a_summarised_range(session, model):
    """A30.c2: the turn after the summary goes and it holds; the turn it was made in goes and it is void"""
    undo_last_turn(session)
    assert read(session)[0] == "summary"
    undo_last_turn(session)
    assert read(session) == ["user", "assistant"]
    hold_conversation(session, "Four")
    assert "They counted." not in said(model)
    assert "Two" not in said(model)
    assert "One" in said(model)
    assert transcript(session) == ["One", "Aye.", "Four", "Aye."]


def test_a_summary_belongs_to_the_branch_it_was_made_in(session, model):
    """A30.6: another version of what it covers is read without it; switched back, it holds again"""
    second = Message.objects.get(session=session, content="Two")
    version = resend_and_wait(session, second.pk, "Zwei")
    assert "They counted." not in said(model)
    assert "fetch" not in said(model)
    switch_branch(session, version, 0)
    assert read(session)[0] == "summary"
    hold_conversation(session, "Four")
    assert "They counted." in said(model)
    assert "Zwei" not in said(model)
    first = Message.objects.get(session=session, content="One")
    resend_and_wait(session, first.pk, "Eins")
    assert [message.text.rpartition("\n")[2] for message in model.requests[-1].messages] == ["Eins"]
