"""The `view_agent_output` tool: report on a run of an agent."""

from __future__ import annotations

from pydantic import Field

from config.core.db import run_in_thread
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import TurnContext
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


class ViewAgentOutput(ToolArguments):
    run_id: str
    wait_seconds: sub_session_tools.WaitSeconds = Field(
        default=0, description=sub_session_tools.WAIT_DESCRIPTION
    )


async def view_agent_output(arguments: ViewAgentOutput, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    prompt = await run_in_thread(_find_prompt, context, arguments.run_id)
    seconds = sub_session_tools.compute_wait_seconds(context, arguments.wait_seconds)
    outcome = await sub_session_tools.wait_for_outcome(invocation, prompt, seconds)
    report = await run_in_thread(sub_session_tools.build_report, context, prompt, outcome, poll=TOOL.name)
    report |= {"run_id": report.pop("session_id")}
    sources = await run_in_thread(list_session_sources, prompt.session_id)
    return ToolOutput(
        value=report,
        session_id=str(prompt.session_id),
        reported_turn_id=sub_session_tools.get_reported_turn_id(outcome),
        sources=sources,
    )


def _find_prompt(context: TurnContext, run_id: str) -> SubSessionPrompt:
    not_found = ToolError("run_not_found", "This conversation has started no such run.")
    try:
        session = sub_session_tools.get_sub_session(context, run_id)
    except ToolError:
        raise not_found from None
    if session.agent_version_id is None:
        raise not_found
    return sub_session_tools.find_latest_prompt(session)


TOOL = Tool(
    name="view_agent_output",
    arguments=ViewAgentOutput,
    run=view_agent_output,
    description=load_description(__file__, longest=sub_session_tools.MAX_WAIT_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    polling=True,
    repeatable=True,
    read_only=True,
)
