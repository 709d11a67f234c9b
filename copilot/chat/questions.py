"""Questions the agent puts to a person: asked once, answered once, closed once (A12). Only writer of its table."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.core.errors import Conflict, FenceLost, InvalidRequest, NotFound
from copilot.chat import turn_hooks
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
    """The call's question: a new one, or after a redelivery the one it asked, with the time it has left (A12.4)."""
    with transaction.atomic():
        turn = Turn.objects.select_for_update().filter(pk=turn_id, fence=fence, ended_at=None).first()
        if turn is None:
            raise FenceLost(f"turn {turn_id} is not at fence {fence} any more")
        asked = Question.objects.filter(turn_id=turn_id, call_id=call_id).first()
        turn_hooks.call_turn_hooks_on_commit(turn_id, turn.origin, "asked")
        return asked or _insert_question(
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
    question.deadline = Now() + timedelta(seconds=timeout_seconds)  # the database's clock
    try:
        with transaction.atomic():
            question.save(force_insert=True)
    except IntegrityError as problem:
        raise Conflict("Another question of this turn is still open.", code="question_open") from problem
    question.refresh_from_db()
    return question


def record_answer(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> Question:
    """The owner's answer; the first one in time wins, every other gets a conflict (A12.4)."""
    found = Question.objects.filter(
        pk=question_id, session__owner_id=user_id, session__deleted_at=None
    ).first()
    if found is None:
        raise NotFound
    said = _check_answer(found, text, choice)
    won = Question.objects.filter(pk=question_id, outcome=OPEN, deadline__gt=Now()).update(
        outcome=Question.Outcome.ANSWERED, answer=said, closed_at=Now()
    )
    if not won:
        raise Conflict("This question is closed.", code="question_closed")
    found.refresh_from_db()
    return found


def _check_answer(question: Question, text: str | None, choice: str | None) -> str:
    if (text is None) == (choice is None):
        raise InvalidRequest("Give either text or a choice.")
    if choice is not None:
        if choice not in question.choices:
            raise InvalidRequest("The choice is not one of the question's choices.")
        return choice
    if not question.allow_text:
        raise InvalidRequest("This question takes one of its choices, not text.")
    if len(text or "") > MAX_ANSWER_CHARACTERS:
        raise InvalidRequest(
            f"An answer may have {MAX_ANSWER_CHARACTERS:,} characters.", code="message_too_long"
        )
    said = clean_text(text or "").strip()
    if not said:
        raise InvalidRequest("The answer is empty.", code="empty_message")
    return said


def close_question(question_id: UUID, outcome: ClosingOutcome) -> bool:
    """Close an open question; False when somebody was faster."""
    return bool(
        Question.objects.filter(pk=question_id, outcome=OPEN).update(outcome=outcome, closed_at=Now())
    )


def refresh_question(question_id: UUID) -> Question:
    """The question as it stands, closed now if its time is up; whether it is, the database's clock says."""
    question = Question.objects.annotate(due=Q(deadline__lte=Now())).get(pk=question_id)
    if question.due and question.outcome == OPEN:
        close_question(question_id, "timed_out")
        question.refresh_from_db()
    return question


def close_questions_of_turn(turn_id: UUID, outcome: ClosingOutcome) -> list[UUID]:
    """Close whatever the turn still asks; answers the ids that were closed by this call."""
    candidates = Question.objects.filter(turn_id=turn_id, outcome=OPEN).values_list("id", flat=True)
    return [question_id for question_id in candidates if close_question(question_id, outcome)]


def get_question_outcome(question: Question) -> ClosedOutcome:
    """How a closed question ended."""
    match question.outcome:
        case "answered" | "timed_out" | "cancelled" | "superseded" as outcome:
            return outcome
        case _:
            raise ValueError(f"question {question.id} is still open")
