"""Titles: a model's, or the user's own words; never in the way of an answer or of a person's name (A18)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from celery.exceptions import OperationalError

from billing.models import UsageRecord
from copilot import tasks
from copilot.agent import titles
from copilot.agent.titles import name_session
from copilot.chat import selectors as chat_selectors
from copilot.chat import sessions
from copilot.models import ModelCall, Session
from copilot.providers.base import ModelRequest
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
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.catalogues import SMALL
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import Errand, Rig, add_tools, cue, ended, log_of, start, told, until


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session()


def named(session: Session) -> tuple[str, str]:
    session.refresh_from_db()
    return session.title, session.title_origin


def test_after_the_first_answer_the_small_model_names_the_conversation(rig, small, session):
    """A18.1, A18.6: without server context, cheaply, recorded with its purpose, told to session and sidebar"""
    small.will(ScriptedText('Title: "Resetting a home router".'), ScriptedUsage(Tokens(input=40, output=6)))
    turn = ended(start(session, "How do I reset my router? " + "x" * 600))
    rig.run_errands()
    assert named(session) == ("Resetting a home router", "auto")
    [request] = small.requests
    given = request.messages[0].text
    assert "How do I reset my router?" in given
    assert "Aye." in given
    assert "env_context" not in given
    assert "x" * 480 not in given
    assert (request.temperature, request.thinking_tokens, request.tools) == (0.2, 0, ())
    assert request.entry.max_output_tokens == 512
    call = ModelCall.objects.get(turn=turn, purpose="title")
    assert (call.number, call.input_tokens, call.output_tokens, call.model) == (2, 40, 6, "small")
    assert call.ended_at is not None
    assert UsageRecord.objects.get(pk=call.pk).purpose == "title"
    assert [event.title for event in told(session.pk, "title.changed")] == ["Resetting a home router"]
    assert told(session.pk, "session.changed")[-1].title == "Resetting a home router"


def test_the_answer_is_published_before_a_title_is_requested(rig, small, session):
    """A3.7, A18.c1: the ending precedes the request, and the order of the sidebar stays"""
    seen: list[list[str]] = []

    def reply(request: ModelRequest) -> list[ScriptItem]:
        seen.append([one.kind for one in log_of(session.pk)])
        return [ScriptedText("Hats")]

    small.otherwise = reply
    other = factories.session()
    ended(start(session, "Which hat?"))
    ended(start(other, "Which coat?"))
    until(lambda: len(rig.errands) == 2)
    rig.errands.sort(key=lambda errand: errand[1] != session.turns.get().pk)
    before = [view.id for view in chat_selectors.list_sessions_page(session.owner_id).items]
    active_at = Session.objects.get(pk=session.pk).active_at
    rig.run_errands(2)
    assert "turn.succeeded" in seen[0]
    assert named(session)[0] == "Hats"
    assert Session.objects.get(pk=session.pk).active_at == active_at
    assert [view.id for view in chat_selectors.list_sessions_page(session.owner_id).items] == before


def test_a_name_given_while_a_title_is_made_stays(rig, small, session):
    """A18.4, A18.c1: the barrier stands between the model's reply and the write"""
    small.will(ScriptedText("A title of ours"))
    turn = ended(start(session, "Which hat?"))
    arrived, go = threading.Event(), threading.Event()
    write = sessions.set_automatic_title

    def held(*args: object, **kwargs: object) -> bool:
        arrived.set()
        assert go.wait(PATIENCE_SECONDS)
        return write(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "set_automatic_title", held)
        naming = threading.Thread(target=lambda: asyncio.run(name_session(turn.pk)))
        naming.start()
        assert arrived.wait(PATIENCE_SECONDS)
        sessions.update_session(session.owner_id, session.pk, title="Mine")
        go.set()
        naming.join(PATIENCE_SECONDS)
    assert named(session) == ("Mine", "manual")
    assert [event.title for event in told(session.pk, "title.changed")] == ["Mine"]


def test_a_named_conversation_is_never_asked_about(rig, small, session):
    """A18.4"""
    sessions.update_session(session.owner_id, session.pk, title="Mine")
    ended(start(session))
    rig.worker.leave(grace_seconds=5)
    assert rig.errands == []
    assert small.requests == []


def test_when_both_models_fail_the_users_words_name_it(rig, small, model, session):
    """A18.1, A18.3, A18.c1"""
    small.always(ScriptedFailure("overloaded"))
    ended(start(session, "How do I reset my router?"))
    model.always(ScriptedFailure("auth_failed"))
    rig.run_errands()
    assert named(session) == ("Reset router", "auto")
    assert len(small.requests) == 1
    assert [call.aborted for call in ModelCall.objects.filter(purpose="title")] == [True, True]


def test_an_acknowledgement_is_no_title(rig, small, model, session):
    """A18.2, A18.c1: two wordings, then the standard model"""
    small.always(ScriptedText("OK."))
    ended(start(session, "How do I reset my router?"))
    model.will(ScriptedText("Router reset steps"))
    rig.run_errands()
    assert named(session)[0] == "Router reset steps"
    assert len({request.system for request in small.requests}) == len(small.requests) == 2


def test_a_refusal_is_no_title(rig, small, model, session):
    """A18.2, A6.1: the next model is asked instead"""
    small.will(ScriptedText("Unable to name this"), ScriptedFinish("refused"))
    model.will(ScriptedText("Aye."))
    model.will(ScriptedText("Resetting a home router"))
    ended(start(session, "How do I reset my router?"))
    rig.run_errands()
    assert named(session) == ("Resetting a home router", "auto")
    assert len(small.requests) == 1


def test_a_model_that_keeps_failing_is_asked_for_a_title_last(rig, small, model, session):
    """A7.7"""
    BREAKERS.open_breaker(fingerprint_entry(SMALL), BreakerTrip(code="overloaded", seconds=60))
    model.will(ScriptedText("Aye."))
    model.will(ScriptedText("Resetting a home router"))
    try:
        ended(start(session, "How do I reset my router?"))
        rig.run_errands()
    finally:
        BREAKERS.replace_all({})
    assert (named(session)[0], small.requests) == ("Resetting a home router", [])


def test_a_reply_that_only_thought_gets_more_room_once(rig, small, session):
    """A18.1"""
    small.will(ScriptedReasoning("Hm, what is this about …"), ScriptedFinish("length"))
    small.will(ScriptedText("Choosing a hat"))
    ended(start(session, "Which hat?"))
    rig.run_errands()
    assert named(session)[0] == "Choosing a hat"
    assert [request.entry.max_output_tokens for request in small.requests] == [512, 1_024]


def test_words_before_a_tool_call_are_not_the_answer(rig, small, model, session, monkeypatch):
    """A18.1"""
    add_tools(monkeypatch, Errand("fetch"))
    model.will(ScriptedText("Let me look that up."), ScriptedCall("fetch"))
    model.will(ScriptedText("Felt is warmest."))
    ended(start(session, "Which hat?"))
    rig.run_errands()
    given = small.requests[0].messages[0].text
    assert "Felt is warmest." in given
    assert "look that up" not in given


def test_with_the_demo_model_no_model_is_asked(rig, model, session):
    """A18.1: the local title, without a request"""
    ended(start(session, "How do I reset my router?"))
    rig.run_errands()
    assert named(session) == ("Reset router", "auto")
    assert len(model.requests) == 1


def test_without_a_usable_title_the_first_words_stay_and_no_model_is_asked_again(rig, model, session):
    """A18.3, A18.6"""
    ended(start(session, "hi"))
    rig.run_errands()
    assert named(session) == ("hi", "auto")
    assert told(session.pk, "title.changed") == []
    ended(start(session, "How do I reset my router?"))
    rig.worker.leave(grace_seconds=5)
    assert rig.errands == []


def test_a_failed_turn_is_no_exchange(rig, small, model, session):
    """A18.1: the first exchange with an answer"""
    model.will(ScriptedFailure("auth_failed"))
    ended(start(session, "Which hat?"))
    small.will(ScriptedText("Hats for winter"))
    ended(start(session, "And now?"))
    rig.run_errands()
    assert named(session)[0] == "Hats for winter"
    assert "Which hat?" in small.requests[0].messages[0].text


def test_titles_are_renewed_every_so_many_exchanges(rig, small, session, settings):
    """A18.5: from the latest exchange; the same title is not written again, and a person's never replaced"""
    settings.TITLE_REFRESH_EXCHANGES = 2
    for title in ("Hats", "Coats", "COATS"):
        small.will(ScriptedText(title))
    for number, text in enumerate(("first", "second", "third", "fourth")):
        ended(start(session, text))
        rig.run_errands()
        assert named(session)[0] == ("Hats", "Coats", "Coats", "Coats")[number]
    assert [event.title for event in told(session.pk, "title.changed")] == ["Hats", "Coats"]
    assert "second" in small.requests[1].messages[0].text
    assert "first" not in small.requests[1].messages[0].text
    assert len(small.requests) == 3  # after the first, the second and the fourth
    sessions.update_session(session.owner_id, session.pk, title="My coats")
    for text in ("fifth", "sixth"):
        ended(start(session, text))
    rig.worker.leave(grace_seconds=5)
    assert rig.errands == []
    assert (named(session), len(small.requests)) == (("My coats", "manual"), 3)


def test_an_automatic_title_that_is_none_is_replaced(rig, small, session):
    """A18.4"""
    Session.objects.filter(pk=session.pk).update(title="The user wants a hat", title_origin="auto")
    small.will(ScriptedText("Choosing a hat"))
    ended(start(session, "Which hat?"))
    rig.run_errands()
    assert named(session) == ("Choosing a hat", "auto")


def test_the_worker_that_answered_names_the_conversation_without_the_broker(rig, session, monkeypatch):
    """A3.7, A18.6: no other process is needed for a title"""

    def away(*args: object, **kwargs: object) -> None:
        raise OperationalError

    rig.send_background_jobs()
    monkeypatch.setattr(tasks.run_background_job, "apply_async", away)
    ended(start(session, "How do I reset my router?"))
    until(lambda: named(session)[0] == "Reset router")


def test_a_worker_that_leaves_does_not_wait_for_a_title_and_the_next_answer_asks_again(rig, small, session):
    """A18.6: what the model had used until then is recorded"""
    rig.send_background_jobs()
    small.will(ScriptedText("Never"), cue(1))
    turn = ended(start(session, "How do I reset my router?"))
    small.reaches(1)
    rig.worker.leave(grace_seconds=5)
    assert named(session)[1] == "default"
    assert ModelCall.objects.get(turn=turn, purpose="title").aborted
    small.will(ScriptedText("Resetting a home router"))
    rig.start_worker()
    ended(start(session, "And again?"))
    until(lambda: named(session) == ("Resetting a home router", "auto"))


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("**Router reset**", "Router reset"),
        ("# Router reset\n", "Router reset"),
        ("<think>It is about\nrouters</think>Router reset", "Router reset"),
        ("<think>never closed", ""),
        ("“Title: 'Router reset'”", "Router reset"),
        ("Router\nreset   at home", "Router reset at home"),
        ("C# and snake_case names", "C# and snake_case names"),
        ("word " * 30, ("word " * 16).strip()),
        ("The user asks about routers", ""),
        ("I should name this", ""),
        ("Let me think", ""),
        ("Here is my thinking", ""),
        ("<b>Router</b>", ""),
        ("OK.", ""),
        ("all set!", ""),
        ("", ""),
    ],
)
def test_replies_become_titles_or_nothing(reply: str, title: str) -> None:
    """A18.2"""
    assert titles.clean_title(reply) == title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("How do I reset my router?", "Reset router"),
        ("Please write a polite email to my landlord about heating. Thanks!", "Write polite email landlord"),
        ("Как сбросить мой роутер до заводских настроек?", "Как сбросить мой роутер"),
        (
            "ルーターをリセットするにはどうすればいいですか。教えて",
            "ルーターをリセットするにはどうすればいいですか",
        ),
        ("hi there", ""),
        ("Router?", "Router"),
        ("Show me what you can do", ""),
        ("   ", ""),
        ("?!", ""),
    ],
)
def test_local_titles(text: str, title: str) -> None:
    """A18.3"""
    assert titles.build_local_title(text) == title
    assert len(titles.build_local_title(text * 20)) <= 60


def test_a_turn_without_any_row_has_no_answer() -> None:
    assert titles._first_substantive_answer([]) == ""
    assert titles._first_substantive_answer([("assistant", "Let me look."), ("tool_call", "{}")]) == ""
    assert titles._first_substantive_answer([("assistant", "Done.")]) == "Done."
