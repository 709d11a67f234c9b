"""The offline demo, from a message to a title: all that an installation without keys can show (A33.c1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from copilot.chat import approval_decisions
from copilot.chat.commands import DecideApproval
from copilot.files import services as files
from copilot.models import Approval, Message, Question
from copilot.providers import catalogue
from tests.support import factories
from tests.support.turn_engine import (
    Rig,
    answer,
    assert_same_page,
    ended,
    folded,
    fresh,
    queue,
    start,
    told,
    until,
)


@pytest.fixture(autouse=True)
def _without_a_key(rig: Rig) -> Iterator[None]:
    """The shipped script itself, and not the rig's; in a hurry."""
    before = catalogue.get_catalogue()
    chain = (replace(catalogue.DEMO_ENTRY, model="offline"),)
    tiers = dict.fromkeys(catalogue.TIERS, chain)
    catalogue.set_catalogue(catalogue.Catalogue(entries=chain, tiers=tiers, demo_tokens_per_second=10_000))
    yield
    catalogue.set_catalogue(before)


def test_the_demo_hears_what_was_written_and_not_what_the_server_adds(rig):
    """W1.2: the first message tells how many files there are, which is no wish for one"""
    files.store_file(factories.ada().pk, name="notes.txt", content=b"calm", source="upload")
    session = factories.session()
    turn_id = start(session, "Use a tool and make a todo list.")
    ended(turn_id)
    called = Message.objects.filter(turn=turn_id, kind="tool_call").values_list("data__tool", flat=True)
    assert set(called) == {"todos_write", "current_time"}


def test_everything_can_be_tried_offline_and_is_labelled_a_demo(rig):
    """A33.c1: reasoning, text, tools, a follow-up, an approval, the answer and a title, in one turn"""
    session = factories.session()
    before = fresh(session)
    turn_id = start(session, "Please ask me something")
    until(lambda: Question.objects.filter(turn=turn_id, outcome="open").exists())
    queue(session, "Never mind: delete a file, but let me approve it")
    until(lambda: told(session.pk, "turn.paused"))
    [request] = Approval.objects.filter(turn=turn_id, state="requested")
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=request.pk, decision="approve")]
    )
    turn = ended(turn_id)
    rig.run_errands()
    kinds = {event.kind for event in told(session.pk)}
    assert kinds >= {
        "reasoning.extended",
        "text.extended",
        "question.asked",
        "follow_up.delivered",
        "tool.finished",
        "approval.requested",
        "approval.decided",
        "turn.succeeded",
        "title.changed",
    }
    assert (turn.status, turn.model) == ("succeeded", catalogue.DEMO_LABEL)
    assert "is in the trash" in answer(turn_id)
    answers = Message.objects.filter(turn=turn_id, kind="assistant")
    assert set(answers.values_list("model", flat=True)) == {catalogue.DEMO_LABEL}
    assert_same_page(folded(before, session), fresh(session))
