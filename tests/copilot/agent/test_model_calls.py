"""Whole turns around one model call: what a failure leaves, what is counted, which clients stay open (A5–A9, A15)."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from copilot import metrics
from copilot.chat import messages
from copilot.models import Message, ModelCall, Turn
from copilot.providers import catalogue
from copilot.providers.base import AssistantMessage, CallFragment, CatalogueEntry
from copilot.providers.clients import get_provider
from copilot.providers.request_validation import find_request_problems
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.turn_engine import Errand, add_tools, answer, ended, notices, quiet, start, together, told


def test_errors_are_shown_to_people_and_never_to_the_model(rig, model):
    """A6.c2, A6.3: a failed turn, then a new message"""
    session = factories.session()
    model.will(ScriptedText("Half an ans"), ScriptedFailure("bad_request", body="the tokeniser exploded"))
    assert ended(start(session, "First")).status == Turn.Status.FAILED
    quiet(session)
    assert notices(session) == ["bad_request"]
    ended(start(session, "Second"))
    said = model.said_to()
    assert "First" in said
    assert "Half an ans" in said
    assert not any(word in said for word in ("bad_request", "exploded", "Request rejected"))
    assert find_request_problems(model.requests[-1]) == []


def test_a_turn_whose_provider_counts_nothing_succeeds_with_an_estimate(rig, model):
    """A5.c2: as an Ollama server answers"""
    turn_id = start(factories.session(), "Hello")
    assert ended(turn_id).status == Turn.Status.SUCCEEDED
    call = ModelCall.objects.get(turn=turn_id)
    assert call.estimated
    assert call.input_tokens > 0
    assert call.output_tokens == 1  # "Aye."


def test_a_usable_call_between_two_broken_ones_spares_the_note(rig, model, monkeypatch):
    """A8.c1: and the history stays valid for every provider"""
    session = factories.session()
    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    broken = CallFragment(0, "x", "fetch", '{"note": ')
    for reply in (broken, ScriptedCall("fetch", {"note": "a"}), broken):
        model.will(reply)
    ended(start(session, "Go"))
    assert errand.runs == 1
    assert not Message.objects.filter(session=session, kind="note").exists()
    assert find_request_problems(model.requests[-1]) == []
    replayed = [
        call.arguments
        for m in model.requests[-1].messages
        if isinstance(m, AssistantMessage)
        for call in m.calls
    ]
    assert replayed == [{}, {"note": "a"}, {}]


@pytest.mark.django_db(transaction=True)
def test_a_result_delivered_twice_at_once_is_one_row():
    """A9.c2, A9.8"""
    turn = factories.turn(factories.session(), Turn.Status.RUNNING)

    def deliver() -> object:
        row = messages.NewMessage(
            id=uuid4(),
            turn_id=turn.pk,
            fence=turn.fence,
            kind="tool_result",
            call_id="c",
            content="x",
        )
        return len(messages.append_messages([row]))

    for _ in range(10):
        Message.objects.filter(turn=turn).delete()
        stored = [one for one in together(deliver, deliver) if isinstance(one, int)]
        assert sum(stored) == Message.objects.filter(turn=turn, kind="tool_result").count() == 1


def test_what_a_cache_gave_is_counted_per_model(rig, model):
    """A15.11"""

    def read() -> float:
        return metrics.prompt_tokens.labels("demo", "read")._value.get()

    before = read()
    model.will(ScriptedText("Hi."), ScriptedUsage(Tokens(input=100, cache_read=900, output=1)))
    turn_id = start(factories.session(), "Hello")
    ended(turn_id)
    assert ModelCall.objects.get(turn=turn_id).cache_read_tokens == 900
    assert read() - before == 900


def test_clients_of_keys_that_are_gone_are_closed_and_those_in_use_are_not(rig, model):
    """A5.2"""
    old = CatalogueEntry(
        name="m", provider="openai_chat", model="m", base_url="http://127.0.0.1:1/v1", credential="old"
    )
    used = CatalogueEntry(
        name="n", provider="openai_chat", model="n", base_url="http://127.0.0.1:1/v1", credential="used"
    )
    before = catalogue.get_catalogue()

    async def meanwhile() -> tuple[bool, bool]:
        made = {entry.name: get_provider(entry) for entry in (old, used)}
        catalogue.set_catalogue(catalogue.Catalogue(entries=(used,), tiers={"standard": (used,)}))
        await rig.worker.engine._close_unused_clients()
        return get_provider(old) is made["m"], get_provider(used) is made["n"]

    try:
        kept = asyncio.run_coroutine_threadsafe(meanwhile(), rig.worker._loop).result(timeout=20)
    finally:
        catalogue.set_catalogue(before)
    assert kept == (False, True)


def test_a_switch_of_models_is_a_break_of_the_prefix_with_its_reason(rig, model):
    """A15.9, A15.11"""
    first = CatalogueEntry(name="First", provider="scripted", model="demo", credential="one")
    second = CatalogueEntry(name="Second", provider="scripted", model="demo", credential="two")
    before, counted = catalogue.get_catalogue(), metrics.prefix_breaks.labels("model_switch")
    number = counted._value.get()
    catalogue.set_catalogue(catalogue.Catalogue(entries=(first, second), tiers={"standard": (first, second)}))
    try:
        model.will(ScriptedFailure("model_not_found", status=404))
        session = factories.session()
        turn_id = start(session, "Hello")
        ended(turn_id)
    finally:
        catalogue.set_catalogue(before)
    assert answer(turn_id) == "Aye."
    assert len(told(session.pk, "model.switched")) == counted._value.get() - number == 1
