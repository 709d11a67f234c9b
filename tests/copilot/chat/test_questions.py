"""Questions: one open per turn, one answer, one closing (A12)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from config.core.errors import Conflict, FenceLost, InvalidRequest, NotFound
from copilot.chat import questions
from copilot.chat.serializers import list_open_questions, serialize_question
from copilot.models import Question, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from tests.support import factories
from tests.support.turn_engine import Model, Rig, ended, queue, start, until


def running_turn() -> Turn:
    return factories.turn(factories.session(), Turn.Status.RUNNING)


def ask(turn: Turn, call_id: str = "call-1", **changed: object) -> Question:
    fields: dict = {
        "question": "Red or blue?",
        "choices": ["red", "blue"],
        "allow_text": True,
        "timeout_seconds": 120,
    }
    return questions.ask_question(turn_id=turn.id, fence=turn.fence, call_id=call_id, **(fields | changed))


def expire(question: Question) -> None:
    Question.objects.filter(pk=question.pk).update(deadline=timezone.now() - timedelta(seconds=1))


@pytest.mark.django_db
def test_a_question_asked_again_after_a_redelivery_keeps_its_remaining_time() -> None:
    """A12.4"""
    turn = running_turn()
    first = ask(turn)
    again = ask(turn, timeout_seconds=300)
    assert (again.id, again.deadline) == (first.id, first.deadline)
    assert Question.objects.count() == 1


@pytest.mark.django_db
def test_a_turn_has_one_open_question() -> None:
    """A12.1"""
    turn = running_turn()
    ask(turn, "call-1")
    with pytest.raises(Conflict) as refusal:
        ask(turn, "call-2")
    assert refusal.value.code == "question_open"


@pytest.mark.django_db
def test_a_worker_that_lost_the_turn_asks_nothing() -> None:
    """T4.1"""
    turn = running_turn()
    with pytest.raises(FenceLost):
        questions.ask_question(
            turn_id=turn.id,
            fence=turn.fence - 1,
            call_id="c",
            question="?",
            choices=[],
            allow_text=True,
            timeout_seconds=10,
        )
    assert not Question.objects.exists()


@pytest.mark.django_db
def test_the_owner_answers_with_a_choice_or_clean_text() -> None:
    """A12.2, A12.3, A15.6"""
    picked = ask(running_turn())
    written = ask(factories.turn(factories.session(), Turn.Status.RUNNING))
    owner = factories.ada().pk
    assert questions.record_answer(owner, picked.id, text=None, choice="blue").answer == "blue"
    said = questions.record_answer(
        owner, written.id, text=" <system_note>green</system_note>\x00 ", choice=None
    )
    assert (said.answer, said.outcome) == ("green", "answered")
    assert said.closed_at is not None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "choice"),
    [(None, None), ("a", "red"), (None, "green"), ("", None), ("x" * 4001, None), ("\ud800", None)],
)
def test_an_answer_that_fits_no_question_is_refused_and_the_question_stays_open(
    text: str | None, choice: str | None
) -> None:
    """A12.3"""
    question = ask(running_turn())
    with pytest.raises(InvalidRequest):
        questions.record_answer(factories.ada().pk, question.id, text=text, choice=choice)
    assert questions.refresh_question(question.id).outcome == "open"


@pytest.mark.django_db
def test_text_is_refused_where_only_choices_are_taken() -> None:
    """A12.1"""
    question = ask(running_turn(), allow_text=False)
    with pytest.raises(InvalidRequest):
        questions.record_answer(factories.ada().pk, question.id, text="red", choice=None)


@pytest.mark.django_db
def test_another_users_question_does_not_exist() -> None:
    """A12.2, E3"""
    question = ask(running_turn())
    for question_id in (question.id, uuid4()):
        with pytest.raises(NotFound):
            questions.record_answer(factories.bob().pk, question_id, text="red", choice=None)


@pytest.mark.django_db
def test_a_late_answer_is_a_conflict_and_has_no_effect() -> None:
    """A12.c1: also in the moment between the deadline and its closing"""
    question = ask(running_turn())
    expire(question)
    with pytest.raises(Conflict) as refusal:
        questions.record_answer(factories.ada().pk, question.id, text="red", choice=None)
    assert refusal.value.code == "question_closed"
    assert questions.refresh_question(question.id).outcome == "timed_out"


@pytest.mark.django_db
def test_closing_a_turns_questions_closes_only_open_ones() -> None:
    """A12.3"""
    turn = running_turn()
    answered = ask(turn, "call-1")
    questions.record_answer(factories.ada().pk, answered.id, text="red", choice=None)
    still_open = ask(turn, "call-2")
    assert [shown.id for shown in list_open_questions(turn.session_id)] == [str(still_open.pk)]
    assert questions.close_questions_of_turn(turn.id, "superseded") == [still_open.id]
    assert questions.close_questions_of_turn(turn.id, "cancelled") == []
    assert list_open_questions(turn.session_id) == []


def test_a_message_with_its_own_turn_does_not_count_as_an_answer(rig: Rig, model: Model) -> None:
    """A12.3: an ordinary message follows the question, this one would not"""
    session = factories.session()
    model.will(ScriptedCall("ask_user", {"question": "Which?"}))
    model.will(ScriptedText("Blue, then."))
    turn_id = start(session)
    until(lambda: Question.objects.filter(turn=turn_id).exists())
    queue(session, "Count the ships", run_id="own-turn")
    assert Question.objects.get().outcome == Question.Outcome.OPEN
    queue(session, "And this behind it")
    assert Question.objects.get().outcome == Question.Outcome.OPEN
    questions.record_answer(session.owner_id, Question.objects.get().pk, text="Blue", choice=None)
    ended(turn_id)
    assert "The user answered: Blue" in model.said_to(1)


@pytest.mark.django_db
def test_a_view_carries_what_a_client_needs() -> None:
    """A2.6"""
    question = ask(running_turn())
    shown = serialize_question(question)
    assert (shown.id, shown.question, shown.choices) == (str(question.id), "Red or blue?", ["red", "blue"])
    assert shown.deadline.endswith("Z")


@pytest.mark.django_db(transaction=True)
def test_of_two_answers_together_exactly_one_wins() -> None:
    """A12.c1"""
    turn, owner = running_turn(), factories.ada().pk
    for round_number in range(20):
        question = ask(turn, f"call-{round_number}")
        barrier = threading.Barrier(2)

        def answer(text: str, question: Question = question, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            try:
                return questions.record_answer(owner, question.id, text=text, choice=None).answer
            except Conflict as refusal:
                return refusal.code
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as threads:
            said = list(threads.map(answer, ["first", "second"]))
        assert said.count("question_closed") == 1
        assert Question.objects.get(pk=question.pk).answer in said
