"""Side questions: answered during a turn, paid for, and leaving no trace in the conversation (A30.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from billing.models import TierPolicy, UsageRecord
from billing.policies import clear_policy_cache
from config.core.db import run_in_thread
from config.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
)
from copilot import tasks
from copilot.chat import side_questions
from copilot.models import Message, ModelCall, Session
from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry, ModelRequest
from copilot.providers.breakers import BREAKERS, BreakerTrip
from copilot.providers.learned_limits import fingerprint_entry
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedReasoning,
    ScriptedText,
    ScriptedUsage,
    ScriptItem,
)
from copilot.realtime import side_question_state
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program
from tests.support.turn_engine import (
    Errand,
    Rig,
    add_tools,
    cue,
    ended,
    fresh,
    kinds,
    log_of,
    quiet,
    shown,
    start,
    told,
    until,
    wait_until_side_question_ended,
)
from tests.support.websocket_client import connected

FRAIL = CatalogueEntry(name="Frail", provider="scripted", model="frail", credential="one")
STURDY = replace(FRAIL, name="Sturdy", model="sturdy", credential="two")
UNPRICED = replace(
    FRAIL, name="Unpriced", provider="openai_chat", model="unpriced", base_url="http://127.0.0.1:1/v1"
)


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session(title="Named")


def ask(session: Session, question: str = "What is a fid?") -> side_questions.SideQuestion:
    return side_questions.ask_side_question(session.owner_id, session.pk, question)


def test_both_stream_and_the_conversation_is_as_it_was(rig, model, session):
    """A30.c1: asked while a turn runs; one usage row with its purpose, no row, no event in the session's log"""
    model.will(ScriptedText("One"), cue(1), ScriptedText(" two"))
    turn = start(session, "Count")
    model.reaches(1)
    until(lambda: shown(session) == "One")
    rows, events = kinds(session), len(log_of(session.pk))
    before = Session.objects.values().get(pk=session.pk)
    model.will(
        ScriptedText("A conical "), cue(2), ScriptedText("pin."), ScriptedUsage(Tokens(input=30, output=4))
    )
    aside = ask(session)
    model.reaches(2)
    until(lambda: told(aside.side_id, "side.extended"))
    assert side_question_state.get_current_side_id(str(session.pk)) == aside.side_id
    model.give(2)
    seen = wait_until_side_question_ended(aside)
    assert (seen.state, seen.text, seen.question) == ("answered", "A conical pin.", "What is a fid?")
    assert (kinds(session), len(log_of(session.pk))) == (rows, events)
    assert Session.objects.values().get(pk=session.pk) == before
    model.give(1)
    assert ended(turn).status == "succeeded"
    assert fresh(session).messages()[-1].content == "One two"
    record = UsageRecord.objects.get(purpose="side")
    assert (record.input_tokens, record.output_tokens, record.session_ref) == (30, 4, str(session.pk))
    assert record.account is not None
    assert record.account.user_id == session.owner_id
    call = ModelCall.objects.get(purpose="side")
    assert (call.pk, call.turn, call.session_id) == (record.call_id, None, session.pk)


def test_it_is_answered_from_the_history_without_tools(rig, model, session, monkeypatch):
    """A30.3: what tools answered is told as words, so that no provider asks for the tools"""
    add_tools(monkeypatch, Errand("fetch"))
    model.will(ScriptedReasoning("secret thought"), ScriptedText("Looking."), ScriptedCall("fetch"))
    model.will(ScriptedText("It is blue."))
    ended(start(session, "Which colour?"))
    wait_until_side_question_ended(ask(session, "Why blue?"))
    request = model.requests[-1]
    assert request.tools == ()
    assert {message.role for message in request.messages} == {"user", "assistant"}
    told_model = repr(request.messages)
    assert "Which colour?" in told_model
    assert "errand fetch done" in told_model
    assert "It is blue." in told_model
    assert "secret thought" not in told_model
    assert request.messages[-1].text.endswith("Why blue?")
    ended(start(session, "Go on"))
    assert "Why blue?" not in repr(model.requests[-1].messages)


def test_one_at_a_time_for_each_session(rig, model, session):
    """A30.3"""
    model.will(ScriptedText("Well"), cue(1))
    first = ask(session)
    model.reaches(1)
    with pytest.raises(Conflict) as refused:
        ask(session, "And another?")
    assert refused.value.code == "side_busy"
    wait_until_side_question_ended(ask(factories.session(), "Elsewhere?"))
    model.give(1)
    wait_until_side_question_ended(first)
    assert wait_until_side_question_ended(ask(session, "Now?")).state == "answered"


def test_it_can_be_stopped_and_what_came_is_kept(rig, model, session):
    """A30.3: the aborted call is paid for, and the turn beside it continues"""
    model.will(ScriptedText("Turn"), cue(1))
    turn = start(session)
    model.reaches(1)
    model.will(ScriptedText("A con"), cue(2))
    aside = ask(session)
    model.reaches(2)
    assert side_questions.stop_side_question(session.owner_id, session.pk) is True
    seen = wait_until_side_question_ended(aside)
    assert (seen.state, seen.text) == ("stopped", "A con")
    assert UsageRecord.objects.get(purpose="side").aborted
    assert side_questions.stop_side_question(session.owner_id, session.pk) is False
    model.give(1)
    assert ended(turn).status == "succeeded"


def test_a_failure_is_reported_and_frees_the_place(rig, model, session):
    model.will(ScriptedFailure("auth_failed"))
    seen = wait_until_side_question_ended(ask(session))
    assert (seen.state, seen.code) == ("failed", "auth_failed")
    assert wait_until_side_question_ended(ask(session)).state == "answered"


def test_a_model_that_is_busy_is_asked_again(rig, model, session, settings):
    """A7.1: as a turn would; the schedule of its class, then the failure stands"""
    settings.RETRY_TRANSIENT_SECONDS = [0, 0]
    model.will(ScriptedFailure("overloaded"))
    model.will(ScriptedFailure("overloaded"))
    model.will(ScriptedText("At last."))
    seen = wait_until_side_question_ended(ask(session))
    assert (seen.state, seen.text) == ("answered", "At last.")
    for _ in range(3):
        model.will(ScriptedFailure("overloaded"))
    assert wait_until_side_question_ended(ask(session)).code == "overloaded"
    assert (len(model.requests), ModelCall.objects.filter(purpose="side").count()) == (6, 6)


def test_a_side_answer_is_not_published_again(rig, model, session, settings):
    """A7.3: nothing there can be taken back, so what came stands"""
    settings.RETRY_TRANSIENT_SECONDS = [0]
    model.will(ScriptedText("Half"), ScriptedFailure("overloaded"))
    seen = wait_until_side_question_ended(ask(session))
    assert (seen.state, seen.text, len(model.requests)) == ("failed", "Half", 1)


@pytest.fixture(name="offer")
def offer_fixture(model, rig) -> Iterator[Callable[..., None]]:
    """Which models are the standard ones; scripts among them answer as `model` does."""
    before = catalogue.get_catalogue()
    for entry in (FRAIL, STURDY):
        scripted.install_script(entry.model, model)

    def offer(*chain: CatalogueEntry) -> None:
        catalogue.set_catalogue(catalogue.Catalogue(entries=chain, tiers={"standard": chain}))

    yield offer
    for entry in (FRAIL, STURDY):
        scripted.uninstall_script(entry.model)
    catalogue.set_catalogue(before)
    BREAKERS.replace_all({})


def test_another_model_answers_where_the_first_may_not_be_asked_or_keeps_failing(
    model, session, offer, settings
):
    """A4.5, A7.7: as a turn's would"""
    settings.REQUIRE_KNOWN_COST = True
    offer(UNPRICED, FRAIL, STURDY)
    BREAKERS.open_breaker(fingerprint_entry(FRAIL), BreakerTrip(code="overloaded", seconds=60))
    assert wait_until_side_question_ended(ask(session)).state == "answered"
    assert [request.entry.name for request in model.requests] == ["Sturdy"]
    assert not ModelCall.objects.filter(provider="openai_chat").exists()


def test_a_model_that_fails_a_side_question_is_counted_and_another_is_asked(model, session, offer, settings):
    """A7.6, A7.7: but nobody is asked again after a refusal (A6.1)"""
    settings.MODEL_BREAKER_FAILURES, settings.MODEL_BREAKER_SECONDS = 1, 60
    offer(FRAIL, STURDY)
    model.will(ScriptedFinish("refused"))
    assert wait_until_side_question_ended(ask(session)).code == "refused"
    assert len(model.requests) == 1
    model.will(ScriptedFailure("model_not_found", status=404))
    assert wait_until_side_question_ended(ask(session)).state == "answered"
    until(lambda: BREAKERS.open_breaker_code(FRAIL))


def test_a_key_that_was_changed_since_is_read_again_once(model, session, offer):
    """A7.4, A7.c3: as a turn's would be; the new one is not looked for twice"""
    offer(FRAIL)
    model.will(cue(1), ScriptedFailure("auth_failed"))
    model.will(ScriptedText("With the new key."))
    aside = ask(session)
    model.reaches(1)
    offer(replace(FRAIL, credential="new"))
    model.give(1)
    seen = wait_until_side_question_ended(aside)
    assert (seen.state, seen.text) == ("answered", "With the new key.")
    assert [request.entry.credential for request in model.requests] == ["one", "new"]
    model.will(cue(2), ScriptedFailure("auth_failed"))
    model.will(cue(3), ScriptedFailure("auth_failed"))
    aside = ask(session)
    for number, credential in ((2, "newer"), (3, "newest")):
        model.reaches(number)
        offer(replace(FRAIL, credential=credential))
        model.give(number)
    assert wait_until_side_question_ended(aside).code == "auth_failed"
    assert len(model.requests) == 4


def test_a_plan_without_the_tier_that_answers_is_refused(session):
    """A4.2"""
    TierPolicy.objects.update_or_create(tier="FREE", defaults={"multiplier": 1, "model_tiers": ["advanced"]})
    clear_policy_cache()
    try:
        with pytest.raises(Forbidden) as refused:
            ask(session)
    finally:
        clear_policy_cache()
    assert refused.value.code == "tier_not_allowed"


def test_stopped_before_a_worker_took_it_nothing_is_asked(rig, model, session):
    rig.hold_tasks()
    aside = ask(session)
    assert side_questions.stop_side_question(session.owner_id, session.pk) is True
    tasks.answer_side_question(str(session.pk), aside.side_id)
    over_again = ask(session)
    tasks.answer_side_question(str(session.pk), over_again.side_id)
    wait_until_side_question_ended(over_again)
    assert len(model.requests) == 1


def test_a_broker_that_is_away_refuses_and_frees_the_place(rig, session, monkeypatch):
    def away(*args: object, **kwargs: object) -> None:
        raise OSError

    monkeypatch.setattr(tasks.answer_side_question, "apply_async", away)
    with pytest.raises(ServiceUnavailable):
        ask(session)
    assert side_question_state.get_current_side_id(str(session.pk)) is None


def test_no_title_no_goal_and_no_memory_come_of_it(rig, model, session):
    """A30.3"""
    Session.objects.filter(pk=session.pk).update(title="", goal="Sail", goal_state="active")
    wait_until_side_question_ended(ask(session))
    assert rig.errands == []
    assert not Message.objects.filter(session=session).exists()
    assert Session.objects.get(pk=session.pk).title == ""


def test_limits_and_sessions_of_other_users(rig, session, monkeypatch):
    """A30.3: it is charged, so what a user may spend counts"""
    for question in ("", "  ", "x" * 4_001):
        with pytest.raises(InvalidRequest):
            ask(session, question)
    with pytest.raises(NotFound):
        side_questions.ask_side_question(factories.bob().pk, session.pk, "What?")
    from datetime import UTC, datetime, timedelta

    from billing import errors
    from billing.usage import limit_checks

    def reached(user_id: int, hold: str) -> None:
        raise errors.LimitReached(window="daily", resets_at=datetime.now(UTC) + timedelta(hours=1))

    monkeypatch.setattr(limit_checks, "check_limits_and_hold", reached)
    with pytest.raises(TooManyRequests):
        ask(session)


def test_over_rest(rig, model, session):
    """A30.2"""
    ada, path = person(factories.ada()), f"{V1}/sessions/{session.pk}/side"
    made = ada.post(path, {"question": "What is a fid?"}, content_type=JSON)
    assert made.status_code == 201
    side_id = made.json()["side_id"]
    until(lambda: ada.get(f"{path}/{side_id}").json()["state"] == "answered")
    assert ada.get(f"{path}/{side_id}").json()["text"] == "Aye."
    assert ada.delete(path).status_code == 204
    other = factories.session()
    for where in (f"{path}/{NOBODYS}", f"{V1}/sessions/{other.pk}/side/{side_id}"):
        assert code_of(ada.get(where)) == "not_found"
    assert code_of(person(factories.bob()).get(f"{path}/{side_id}")) == "not_found"
    assert code_of(program(factories.ada(), "read").post(path, {"question": "?"}, content_type=JSON)) == (
        "insufficient_scope"
    )


@pytest.mark.asyncio
async def test_a_socket_that_asks_hears_the_answer_to_its_end(rig, model, session):
    """A30.3: whether or not it follows the session; and goals by socket too"""

    def reply(request: ModelRequest) -> list[ScriptItem]:
        return [ScriptedText("A conical "), ScriptedText("pin.")]

    model.otherwise = reply
    async with connected(await run_in_thread(factories.ada)) as socket:
        ack = await socket.ask("side.ask", session_id=str(session.pk), question="What is a fid?")
        assert ack["kind"] == "ack"
        text, kind = "", ""
        while kind != "side.ended":
            event = await socket.event("side.extended", "side.ended")
            assert event["session_id"] == ack["side_id"]
            kind = event["kind"]
            text += event.get("delta", "")
        assert (text, event["text"]) == ("A conical pin.", "A conical pin.")
        assert (await socket.ask("side.stop", session_id=str(session.pk)))["kind"] == "ack"
        refused = await socket.ask("side.ask", session_id=str(session.pk), question="")
        assert (refused["kind"], refused["code"]) == ("error", "invalid_question")
        goal = await socket.ask("goal.set", session_id=str(session.pk), text="Sail")
        assert (goal["goal"], goal["state"]) == ("Sail", "active")
        paused = await socket.ask("goal.change", session_id=str(session.pk), act="pause")
        assert paused["state"] == "paused"
    await run_in_thread(quiet, session)
