"""Puts a question to the person and waits for the answer, within limits (A12)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Self, assert_never
from uuid import UUID

from django.conf import settings
from pydantic import Field, StringConstraints, field_validator, model_validator

from copilot import questions
from copilot.awaited import question_view
from copilot.bridge import in_thread
from copilot.events import QuestionAsked, QuestionClosed
from copilot.models import Question
from copilot.redaction import redact_shapes
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Arguments, Invocation, Tool, ToolOutput, prose

POLL_SECONDS = 0.25  # one indexed read; the answer arrives in another process, and Redis may be away
SHORTEST_SECONDS = 10
LONGEST_SECONDS = int(settings.MAX_TOOL_WAIT_SECONDS)
MARGIN_SECONDS = 2  # the question closes before the call itself runs into its limit
NO_ANSWER = "The user did not answer in time. Go on with your best judgement, and say that you did."
REPLY_FOLLOWS = "The user sent a message instead of an answer. It follows; read it as the reply."

Choice = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class AskUser(Arguments):
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    choices: list[Choice] = Field(default=[], max_length=8, description="Answers to pick from.")
    allow_text: bool = Field(default=True, description="Whether the user may write an answer of their own.")
    timeout_seconds: int = Field(
        default=settings.QUESTION_SECONDS,
        description=f"How long to wait: {SHORTEST_SECONDS} to {LONGEST_SECONDS}.",
    )

    @field_validator("timeout_seconds")
    @classmethod
    def _clamped(cls, value: int) -> int:
        return min(max(value, SHORTEST_SECONDS), LONGEST_SECONDS)

    @model_validator(mode="after")
    def _answerable(self) -> Self:
        if not self.choices and not self.allow_text:
            raise ValueError("give choices or allow text, otherwise nobody can answer")
        return self


async def ask_user(arguments: AskUser, invocation: Invocation) -> ToolOutput:
    """Stopping leaves the question open: whoever ends the turn closes it, and a hand-over asks it no second time."""
    longest = int(settings.MAX_TOOL_WAIT_SECONDS) - MARGIN_SECONDS
    question = await in_thread(
        questions.ask,
        turn_id=UUID(invocation.context.turn_id),
        fence=invocation.context.fence,
        call_id=invocation.call_id,
        question=redact_shapes(arguments.question),
        choices=[redact_shapes(choice) for choice in arguments.choices],
        allow_text=arguments.allow_text,
        timeout_seconds=min(arguments.timeout_seconds, longest),
    )
    invocation.emit(QuestionAsked(question=question_view(question)))
    while question.outcome == Question.Outcome.OPEN:
        await asyncio.sleep(POLL_SECONDS)
        question = await in_thread(questions.look, question.id)
    return _closed(question, invocation)


def _closed(question: Question, invocation: Invocation) -> ToolOutput:
    outcome = questions.outcome_of(question)
    invocation.emit(QuestionClosed(question_id=str(question.id), outcome=outcome))
    match outcome:
        case "answered":
            return ToolOutput(value=f"The user answered: {question.answer}")
        case "timed_out":
            return ToolOutput(value=NO_ANSWER)
        case "superseded":
            return ToolOutput(value=REPLY_FOLLOWS)
        case "cancelled":
            return ToolOutput(value="The question was cancelled.", success=False)
        case unreachable:
            assert_never(unreachable)


TOOL = Tool(
    name="ask_user",
    arguments=AskUser,
    run=ask_user,
    returns_user_text=True,
    description=prose(
        __file__, usual=settings.QUESTION_SECONDS, least=SHORTEST_SECONDS, most=LONGEST_SECONDS
    ),
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    exclusive=True,
    repeatable=True,  # asked again after a redelivery, it finds its own question (A12.4)
    interactive=True,
)
