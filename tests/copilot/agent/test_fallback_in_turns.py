"""Turns whose model fails: another continues, and every row says who wrote it (A7.4, A7.6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from copilot.models import Message, ModelCall
from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedReasoning, ScriptedText
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import (
    Errand,
    add_tools,
    answer,
    assert_same_page,
    cue,
    ended,
    folded,
    fresh,
    notices,
    quiet,
    start,
    told,
    until,
)

FIRST = CatalogueEntry(name="First", provider="scripted", model="first", can_reason=True, credential="old")
SECOND = CatalogueEntry(
    name="Second", provider="scripted", model="second", can_reason=True, credential="other"
)
GONE = ScriptedFailure("model_not_found", status=404)


def offer(*chain: CatalogueEntry) -> None:
    catalogue.set_catalogue(catalogue.Catalogue(entries=chain, tiers={"standard": chain}))


@pytest.fixture(autouse=True)
def _chain(model) -> Iterator[None]:
    """Both entries are played by the one model under the test's hand."""
    before = catalogue.get_catalogue()
    offer(FIRST, SECOND)
    for entry in (FIRST, SECOND):
        scripted.install_script(entry.model, model)
    yield
    for entry in (FIRST, SECOND):
        scripted.uninstall_script(entry.model)
    catalogue.set_catalogue(before)


def asked(model):
    return [request.entry.name for request in model.requests]


def test_rows_and_calls_carry_the_model_that_wrote_them(rig, model, monkeypatch):
    """A7.6: also after a reload"""
    session = factories.session()
    add_tools(monkeypatch, Errand("fetch"))
    model.will(ScriptedText("Fetching."), ScriptedCall("fetch"))
    model.will(GONE)
    model.will(ScriptedReasoning("Hm."), ScriptedText("Fetched."))
    turn_id = start(session)
    turn = ended(turn_id)
    quiet(session)
    rows = Message.objects.filter(turn=turn_id).exclude(kind="user").order_by("sequence")
    assert [(row.kind, row.model) for row in rows] == [
        ("assistant", "First"),
        ("tool_call", "First"),
        ("tool_result", ""),
        ("reasoning", "Second"),
        ("assistant", "Second"),
    ]
    calls = ModelCall.objects.filter(turn=turn_id).order_by("number")
    assert list(calls.values_list("model", flat=True)) == ["first", "first", "second"]
    assert told(session.pk, "turn.succeeded")[0].summary.model == "Second"
    assert [event.to_model for event in told(session.pk, "model.switched")] == ["Second"]
    assert (turn.status, notices(session)) == ("succeeded", [])
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))


def test_the_next_turn_starts_with_the_primary(rig, model):
    """A7.6"""
    session = factories.session()
    model.will(GONE)
    ended(start(session))
    quiet(session)
    ended(start(session, "Again"))
    assert asked(model) == ["First", "Second", "First"]


def test_a_turn_that_was_taken_over_stays_with_the_model_it_switched_to(rig, model):
    """A7.6, T9.1"""
    session = factories.session()
    model.will(GONE)
    model.will(ScriptedText("Half"), cue(1))
    model.will(ScriptedText(" and half."))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "text.extended"))
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    ended(turn_id)
    assert (answer(turn_id), asked(model)) == ("Half and half.", ["First", "Second", "Second"])


def test_a_key_rotated_while_a_turn_runs_is_read_again(rig, model):
    """A7.c3"""
    session = factories.session()
    model.will(cue(1), ScriptedFailure("auth_failed", status=401))
    turn_id = start(session)
    model.reaches(1)
    offer(CatalogueEntry(name="First", provider="scripted", model="first", can_reason=True, credential="new"))
    model.give(1)
    assert ended(turn_id).status == "succeeded"
    assert [request.entry.credential for request in model.requests] == ["old", "new"]
    assert [event.healing for event in told(session.pk, "model.healed")] == ["credentials"]
    assert notices(session) == []


def test_when_all_fail_the_notice_names_the_first_class_and_the_models_tried(rig, model):
    """A7.c5"""
    session = factories.session()
    model.always(GONE)
    turn = ended(start(session))
    quiet(session)
    assert (turn.status, turn.failure_code) == ("failed", "model_not_found")
    notice = told(session.pk, "notice.posted")[-1]
    assert "First (model_not_found), Second (model_not_found)" in notice.details
