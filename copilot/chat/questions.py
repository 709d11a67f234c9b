"""Ask a person questions of the agent, and record how each one closes. The only writer of Question."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from config.core.errors import Conflict, FenceLost, InvalidRequest, NotFound
from copilot import signals
from copilot.chat.commands import clean_text
from copilot.models import Question, Turn

MAX_ANSWER_CHARACTERS = 4_000
OPEN = Question.Outcome.OPEN

ClosingOutcome = Literal["timed_out", "cancelled", "superseded"]
ClosedOutcome = Literal["answered"] | ClosingOutcome


def ask_question(
    *,
    turn_id: UUID,
    fence: int,
    call_id: str,
    question: str,
    choices: list[str],
    allow_text: bool,
    timeout_seconds: int,
) -> Question:
    """Store the call's question, or return the one it asked before its turn was taken over."""
    with transaction.atomic():
        turn = Turn.objects.select_for_update().filter(pk=turn_id, fence=fence, ended_at=None).first()
        if turn is None:
            raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
        existing = Question.objects.filter(turn_id=turn_id, call_id=call_id).first()
        signals.send_turn_signal(signals.turn_awaits_person, turn_id, turn.origin)
        return existing or _insert_question(
            Question(
                turn=turn,
                session_id=turn.session_id,
                call_id=call_id,
                question=question,
                choices=choices,
                allow_text=allow_text,
            ),
            timeout_seconds,
        )


def _insert_question(question: Question, timeout_seconds: int) -> Question:
    question.deadline = Now() + timedelta(seconds=timeout_seconds)  # by the database's clock
    try:
        with transaction.atomic():
            question.save(force_insert=True)
    except IntegrityError as problem:
        raise Conflict("Another question of this turn is still open.", code="question_open") from problem
    question.refresh_from_db()
    return question


def record_answer(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> Question:
    """Record the owner's answer. The first one in time wins; every later one is a Conflict."""
    question = Question.objects.visible_to(user_id).filter(pk=question_id).first()
    if question is None:
        raise NotFound
    answer = _check_answer(question, text, choice)
    updated = (
        Question.objects.open()
        .filter(pk=question_id, deadline__gt=Now())
        .update(outcome=Question.Outcome.ANSWERED, answer=answer, closed_at=Now())
    )
    if not updated:
        raise Conflict("This question is closed.", code="question_closed")
    question.refresh_from_db()
    return question


def _check_answer(question: Question, text: str | None, choice: str | None) -> str:
    if (text is None) == (choice is None):
        raise InvalidRequest("Send either text or a choice.")
    if choice is not None:
        if choice not in question.choices:
            raise InvalidRequest("That is not one of the choices.")
        return choice
    if not question.allow_text:
        raise InvalidRequest("This question can only be answered with one of its choices.")
    if len(text or "") > MAX_ANSWER_CHARACTERS:
        raise InvalidRequest(
            f"Answers can be up to {MAX_ANSWER_CHARACTERS:,} characters.", code="message_too_long"
        )
    answer = clean_text(text or "").strip()
    if not answer:
        raise InvalidRequest("The answer is empty.", code="empty_message")
    return answer


def close_question(question_id: UUID, outcome: ClosingOutcome) -> bool:
    return bool(Question.objects.open().filter(pk=question_id).update(outcome=outcome, closed_at=Now()))


def refresh_question(question_id: UUID) -> Question:
    """Return the question as it is now, closed if its time is up by the database's clock."""
    overdue = Question.objects.open().filter(pk=question_id, deadline__lte=Now())
    overdue.update(outcome=Question.Outcome.TIMED_OUT, closed_at=Now())
    return Question.objects.get(pk=question_id)


def close_questions_of_turn(turn_id: UUID, outcome: ClosingOutcome) -> list[UUID]:
    candidates = Question.objects.open().filter(turn_id=turn_id).values_list("id", flat=True)
    return [question_id for question_id in candidates if close_question(question_id, outcome)]


def get_question_outcome(question: Question) -> ClosedOutcome:
    match question.outcome:
        case "answered" | "timed_out" | "cancelled" | "superseded" as outcome:
            return outcome
        case _:
            raise ValueError(f"question {question.id} is still open")
