"""The `run_sub_session` tool: give a task to a sub-session and wait for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from config.core.db import run_in_thread
from copilot.chat import sub_sessions
from copilot.chat.commands import validate_text
from copilot.chat.permissions import Permissions
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import TurnContext
from copilot.models import Session, Turn
from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Tool,
    ToolArguments,
    ToolError,
    ToolInvocation,
    ToolOutput,
    load_description,
)
from copilot.tools.builtin import sub_session_tools
from copilot.tools.builtin.sub_session_tools import SubSessionPrompt

POLL_TOOL = "get_sub_session_result"


class RunSubSession(ToolArguments):
    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=32_000)]
    context: str = Field(default="", max_length=30_000, description="What it must know besides the task.")
    session_id: str | None = Field(default=None, description="A sub-session of yours, to continue it.")
    wait_seconds: sub_session_tools.WaitSeconds = Field(
        default=sub_session_tools.DEFAULT_WAIT_SECONDS, description=sub_session_tools.WAIT_DESCRIPTION
    )


async def run_sub_session(arguments: RunSubSession, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    prompt = await run_in_thread(_send_prompt, context, arguments)
    seconds = sub_session_tools.compute_wait_seconds(context, arguments.wait_seconds)
    outcome = await sub_session_tools.wait_for_outcome(invocation, prompt, seconds)
    report = await run_in_thread(sub_session_tools.build_report, context, prompt, outcome, poll=POLL_TOOL)
    return ToolOutput(
        value=report,
        success=outcome.status not in ("failed", "cancelled"),
        session_id=str(prompt.session_id),
        reported_turn_id=sub_session_tools.get_reported_turn_id(outcome),
        sources=await run_in_thread(list_session_sources, prompt.session_id),
    )


def _send_prompt(context: TurnContext, arguments: RunSubSession) -> SubSessionPrompt:
    text = arguments.prompt
    if arguments.context.strip():
        text = f"{text}\n\nWhat you should know:\n{arguments.context.strip()}"
    text = validate_text(text)
    if arguments.session_id is None:
        return sub_session_tools.start_sub_session(context, text, permissions=context.permissions)
    child = sub_session_tools.get_sub_session(context, arguments.session_id)
    _check_not_busy(context, child)
    return sub_session_tools.prompt_sub_session(context, child, text, permissions=context.permissions)


def _check_not_busy(context: TurnContext, child: Session) -> None:
    """Refuse to queue behind work that has more permissions than the caller."""
    running = Turn.objects.unfinished().filter(session=child).first()
    if running is not None and not Permissions.from_json(running.permissions).is_within(context.permissions):
        raise ToolError(
            "busy_other_permissions",
            "The sub-session is busy with work that may do more than this turn. Wait for its end.",
        )


def _estimate_cost(arguments: RunSubSession, context: TurnContext) -> int:
    return sub_session_tools.compute_budget(context)


TOOL = Tool(
    name="run_sub_session",
    arguments=RunSubSession,
    run=run_sub_session,
    returns_user_text=True,
    description=load_description(
        __file__,
        usual=sub_session_tools.DEFAULT_WAIT_SECONDS,
        longest=sub_session_tools.MAX_WAIT_SECONDS,
        at_once=sub_sessions.MAX_RUNNING_SUB_SESSIONS,
        levels=sub_sessions.MAX_DEPTH,
    ),
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    billable=True,
    estimate=_estimate_cost,
)
