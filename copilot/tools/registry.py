"""List the built-in tools in the order models see them, and choose which of them a turn is offered."""

from __future__ import annotations

from collections.abc import Sequence

from copilot.chat.permissions import Permissions
from copilot.chat.turn_context import Channel
from copilot.tools.base import BaseTool
from copilot.tools.builtin import (
    ask_user,
    bash_exec,
    cancel_scheduled_task,
    create_agent,
    current_time,
    delete_file,
    edit_agent,
    get_agent_guide,
    get_sub_session_result,
    list_agents,
    list_files,
    list_scheduled_tasks,
    memory_add,
    memory_forget,
    memory_search,
    python_exec,
    read_file,
    read_tool_result,
    run_agent,
    run_sub_session,
    schedule_task,
    share_file,
    todos_write,
    view_agent_output,
    web_fetch,
    web_search,
    write_file,
)

BUILTIN_TOOLS: tuple[BaseTool, ...] = (
    write_file.TOOL,
    read_file.TOOL,
    list_files.TOOL,
    delete_file.TOOL,
    share_file.TOOL,
    read_tool_result.TOOL,
    bash_exec.TOOL,
    python_exec.TOOL,
    web_fetch.TOOL,
    web_search.TOOL,
    memory_add.TOOL,
    memory_search.TOOL,
    memory_forget.TOOL,
    schedule_task.TOOL,
    list_scheduled_tasks.TOOL,
    cancel_scheduled_task.TOOL,
    todos_write.TOOL,
    current_time.TOOL,
    ask_user.TOOL,
    run_sub_session.TOOL,
    get_sub_session_result.TOOL,
    get_agent_guide.TOOL,
    list_agents.TOOL,
    create_agent.TOOL,
    edit_agent.TOOL,
    run_agent.TOOL,
    view_agent_output.TOOL,
)
_BY_NAME = {tool.name: tool for tool in BUILTIN_TOOLS}


def find_tool(name: str) -> BaseTool | None:
    return _BY_NAME.get(name)


def list_offered_tools(
    permissions: Permissions, channel: Channel, outside: Sequence[BaseTool] = ()
) -> tuple[BaseTool, ...]:
    """Return the tools this turn may use: built-in ones in registry order, then those of MCP servers.

    A turn with any tool at all is also offered `read_tool_result`.
    """
    chosen = {
        tool.name
        for tool in BUILTIN_TOOLS
        if _is_allowed(tool, permissions, channel) and not tool.unavailable_reason()
    }
    others = tuple(tool for tool in outside if _is_allowed(tool, permissions, channel))
    if chosen or others:
        chosen.add(read_tool_result.TOOL.name)
    return (*(tool for tool in BUILTIN_TOOLS if tool.name in chosen), *others)


def list_unavailable_tools() -> dict[str, str]:
    """Return the tools that cannot work in this installation, with the reason. For people, not for models."""
    return {tool.name: reason for tool in BUILTIN_TOOLS if (reason := tool.unavailable_reason())}


def _is_allowed(tool: BaseTool, permissions: Permissions, channel: Channel) -> bool:
    return (
        permissions.allows_tool(tool.name)
        and (channel.interactive or not tool.interactive)
        and (permissions.network or not tool.network)
        and (permissions.memory or not tool.memory)
        and (permissions.sub_sessions or not tool.sub_sessions)
        and (permissions.schedules or not tool.schedules)
    )
