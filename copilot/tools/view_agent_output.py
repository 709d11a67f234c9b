"""Looks what became of a run of an agent (A27.2)."""

from __future__ import annotations

from pydantic import Field

from copilot.bridge import in_thread
from copilot.context import TurnContext
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


class ViewAgentOutput(Arguments):
    run_id: str
    wait_seconds: children.Wait = Field(default=0, description=children.WAITING)


async def view_agent_output(arguments: ViewAgentOutput, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    prompt = await in_thread(_find, context, arguments.run_id)
    seconds = children.waiting_seconds(context, arguments.wait_seconds)
    outcome = await children.outcome_of(context, prompt, seconds)
    told = await in_thread(children.report, context, prompt, outcome, poll=TOOL.name)
    told |= {"run_id": told.pop("session_id")}
    sources = await in_thread(sources_of_session, prompt.session_id)
    return ToolOutput(value=told, session_id=str(prompt.session_id), sources=sources)


def _find(context: TurnContext, run_id: str) -> Prompt:
    no_such = ToolFailed("run_not_found", "This conversation has started no such run.")
    try:
        session = children.of_caller(context, run_id)
    except ToolFailed:
        raise no_such from None
    if session.agent_version_id is None:
        raise no_such
    return children.newest(session)


TOOL = Tool(
    name="view_agent_output",
    arguments=ViewAgentOutput,
    run=view_agent_output,
    description=prose(__file__, longest=children.LONGEST_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    polling=True,
    repeatable=True,
    read_only=True,
)
