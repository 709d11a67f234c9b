"""Gives a piece of work to a conversation of its own, and waits for it as long as asked (A21)."""

from __future__ import annotations

from typing import Annotated

from django.conf import settings
from pydantic import Field, StringConstraints

from copilot.bridge import in_thread
from copilot.commands import checked_text
from copilot.context import TurnContext
from copilot.models import Session, Turn
from copilot.permissions import Permissions
from copilot.provenance import sources_of_session
from copilot.tools import children
from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Arguments,
    Invocation,
    Tool,
    ToolFailed,
    ToolOutput,
    prose,
)
from copilot.tools.children import Prompt

POLL = "get_sub_session_result"


class RunSubSession(Arguments):
    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=32_000)]
    context: str = Field(default="", max_length=30_000, description="What it must know besides the task.")
    session_id: str | None = Field(default=None, description="A sub-session of yours, to continue it.")
    wait_seconds: children.Wait = Field(
        default=settings.SUB_SESSION_WAIT_SECONDS, description=children.WAITING
    )


async def run_sub_session(arguments: RunSubSession, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    prompt = await in_thread(_say, context, arguments)
    seconds = children.waiting_seconds(context, arguments.wait_seconds)
    outcome = await children.outcome_of(context, prompt, seconds)
    told = await in_thread(children.report, context, prompt, outcome, poll=POLL)
    return ToolOutput(
        value=told,
        success=outcome.status not in ("failed", "cancelled"),
        session_id=str(prompt.session_id),
        sources=await in_thread(sources_of_session, prompt.session_id),
    )


def _say(context: TurnContext, arguments: RunSubSession) -> Prompt:
    text = arguments.prompt
    if arguments.context.strip():
        text = f"{text}\n\nWhat you should know:\n{arguments.context.strip()}"
    text = checked_text(text)
    if arguments.session_id is None:
        return children.begin(context, text, permissions=context.permissions)
    child = children.of_caller(context, arguments.session_id)
    _check_free(context, child)
    return children.say_to(context, child, text, permissions=context.permissions)


def _check_free(context: TurnContext, child: Session) -> None:
    """A prompt may wait behind work that may do no more than its caller (A21.7)."""
    running = Turn.objects.filter(session=child, status__in=Turn.UNFINISHED).first()
    if running is not None and not Permissions.from_json(running.permissions).within(context.permissions):
        raise ToolFailed(
            "busy_other_permissions",
            "The sub-session is busy with work that may do more than this turn. Wait for its end.",
        )


def _estimate(arguments: RunSubSession, context: TurnContext) -> int:
    return children.budget_for(context)


TOOL = Tool(
    name="run_sub_session",
    arguments=RunSubSession,
    run=run_sub_session,
    returns_user_text=True,
    description=prose(
        __file__,
        usual=settings.SUB_SESSION_WAIT_SECONDS,
        longest=children.LONGEST_SECONDS,
        at_once=settings.SUB_SESSIONS_AT_ONCE,
        levels=settings.SUB_SESSION_DEPTH,
    ),
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    billable=True,
    estimate=_estimate,
)
