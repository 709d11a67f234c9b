"""The `ask_user` tool: ask the user a question and wait for the answer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Self, assert_never
from uuid import UUID

from django.conf import settings
from pydantic import Field, StringConstraints, field_validator, model_validator

from config.core.db import run_in_thread
from config.core.redaction import redact_secret_patterns
from copilot.chat import questions
from copilot.chat.serializers import serialize_question
from copilot.models import Question
from copilot.realtime.events import QuestionAsked, QuestionClosed
from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    load_description,
)

ANSWER_POLL_SECONDS = 0.25  # one indexed read; polled because the answer arrives in another process
DEFAULT_TIMEOUT_SECONDS = 120
MIN_TIMEOUT_SECONDS = 10
MAX_TIMEOUT_SECONDS = int(settings.MAX_TOOL_WAIT_SECONDS)
TIMEOUT_MARGIN_SECONDS = 2  # the question closes before the call itself times out
NO_ANSWER_MESSAGE = "The user did not answer in time. Go on with your best judgement, and say that you did."
REPLY_FOLLOWS_MESSAGE = "The user sent a message instead of an answer. It follows; read it as the reply."

AnswerChoice = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class AskUser(ToolArguments):
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    choices: list[AnswerChoice] = Field(default=[], max_length=8, description="Answers to pick from.")
    allow_text: bool = Field(default=True, description="Whether the user may write an answer of their own.")
    timeout_seconds: int = Field(
        default=DEFAULT_TIMEOUT_SECONDS,
        description=f"How long to wait: {MIN_TIMEOUT_SECONDS} to {MAX_TIMEOUT_SECONDS}.",
    )

    @field_validator("timeout_seconds")
    @classmethod
    def _clamp_timeout(cls, value: int) -> int:
        return min(max(value, MIN_TIMEOUT_SECONDS), MAX_TIMEOUT_SECONDS)

    @model_validator(mode="after")
    def _check_answerable(self) -> Self:
        if not self.choices and not self.allow_text:
            raise ValueError("give choices or allow text, otherwise nobody can answer")
        return self


async def ask_user(arguments: AskUser, invocation: ToolInvocation) -> ToolOutput:
    """Ask, then poll until the question is closed.

    A cancelled call leaves the question open: ending the turn closes it, and a takeover does not ask again.
    """
    longest = int(settings.MAX_TOOL_WAIT_SECONDS) - TIMEOUT_MARGIN_SECONDS
    question = await run_in_thread(
        questions.ask_question,
        turn_id=UUID(invocation.context.turn_id),
        fence=invocation.context.fence,
        call_id=invocation.call_id,
        question=redact_secret_patterns(arguments.question),
        choices=[redact_secret_patterns(choice) for choice in arguments.choices],
        allow_text=arguments.allow_text,
        timeout_seconds=min(arguments.timeout_seconds, longest),
    )
    invocation.emit(QuestionAsked(question=serialize_question(question)))
    while question.outcome == Question.Outcome.OPEN:
        await asyncio.sleep(ANSWER_POLL_SECONDS)
        question = await run_in_thread(questions.refresh_question, question.id)
    return _report_closed_question(question, invocation)


def _report_closed_question(question: Question, invocation: ToolInvocation) -> ToolOutput:
    outcome = questions.get_question_outcome(question)
    invocation.emit(QuestionClosed(question_id=str(question.id), outcome=outcome))
    match outcome:
        case "answered":
            return ToolOutput(value=f"The user answered: {question.answer}")
        case "timed_out":
            return ToolOutput(value=NO_ANSWER_MESSAGE)
        case "superseded":
            return ToolOutput(value=REPLY_FOLLOWS_MESSAGE)
        case "cancelled":
            return ToolOutput(value="The question was cancelled.", success=False)
        case unreachable:
            assert_never(unreachable)


TOOL = Tool(
    name="ask_user",
    arguments=AskUser,
    run=ask_user,
    returns_user_text=True,
    description=load_description(
        __file__, usual=DEFAULT_TIMEOUT_SECONDS, least=MIN_TIMEOUT_SECONDS, most=MAX_TIMEOUT_SECONDS
    ),
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    exclusive=True,
    repeatable=True,  # a repeated call finds its own question
    interactive=True,
)
