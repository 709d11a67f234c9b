"""List all tools for people: what each does, whether it works in this installation, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from copilot.memories import services as memories
from copilot.models import McpServer
from copilot.providers import catalogue, catalogue_store
from copilot.tools import registry
from copilot.tools.base import BaseTool
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp import tool_listing
from copilot.tools.mcp.tool_listing import ToolLocation

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
MEMORY_OFF_REASON = "Memory is switched off in your settings."
# For people; the descriptions of tools are written for models.
SUMMARIES = {
    "ask_user": _("Ask you a question and wait for your answer."),
    "bash_exec": _("Run shell commands in a sandbox without network access."),
    "cancel_scheduled_task": _("Cancel a scheduled task."),
    "create_agent": _("Save instructions and tools as an agent."),
    "current_time": _("Look up the date and time."),
    "delete_file": _("Delete one of your files."),
    "edit_agent": _("Change one of your agents."),
    "get_agent_guide": _("Read the guide to building agents."),
    "get_sub_session_result": _("Check on a sub-chat and read its result."),
    "list_agents": _("List your agents."),
    "list_files": _("List your files."),
    "list_scheduled_tasks": _("List your scheduled tasks."),
    "memory_add": _("Remember a fact about you for later chats."),
    "memory_forget": _("Delete a memory."),
    "memory_search": _("Search what Pilothouse remembers about you."),
    "python_exec": _("Run Python code in a sandbox without network access."),
    "read_file": _("Read your files."),
    "read_tool_result": _("Read more of a long tool result."),
    "run_agent": _("Run one of your agents in a chat of its own."),
    "run_sub_session": _("Hand part of the work to a sub-chat."),
    "schedule_task": _("Schedule a task that runs even when you're away."),
    "share_file": _("Create a public link to a file."),
    "todos_write": _("Keep a to-do list for the chat."),
    "view_agent_output": _("Check on an agent's run and read its result."),
    "web_fetch": _("Read web pages."),
    "web_search": _("Search the web."),
    "write_file": _("Create files for you."),
}


@dataclass(frozen=True, kw_only=True)
class ToolShown:
    name: str
    description: str
    server: str | None  # the MCP server it belongs to
    asks: bool  # it needs approval before it runs
    available: bool
    reason: str  # why it is not available

    @property
    def summary(self) -> str:
        """Return one sentence for people; of other servers' tools, the first of their description."""
        if self.server is None and self.name in SUMMARIES:
            return gettext(SUMMARIES[self.name])
        return _SENTENCE_END.split(self.description.strip(), maxsplit=1)[0].replace("`", "")


@dataclass(frozen=True, kw_only=True)
class AnsweringModels:
    """Names of the models that can answer, with demo models apart."""

    real: tuple[str, ...]
    demo: tuple[str, ...]


def list_answering_models() -> AnsweringModels:
    catalogue_store.refresh_catalogue()
    chain = catalogue.get_catalogue().tiers.get("standard", ())
    return AnsweringModels(
        real=tuple(entry.name for entry in chain if not entry.demo),
        demo=tuple(entry.name for entry in chain if entry.demo),
    )


def list_unavailable_tools() -> dict[str, str]:
    return registry.list_unavailable_tools()


def list_user_tools(user_id: int) -> list[ToolShown]:
    missing = list_unavailable_tools()
    remembers = memories.is_memory_enabled(user_id)
    shipped = [
        _describe_builtin_tool(
            tool, missing.get(tool.name) or ("" if remembers or not tool.memory else MEMORY_OFF_REASON)
        )
        for tool in registry.BUILTIN_TOOLS
    ]
    return shipped + _list_mcp_tools(row for row in mcp.list_visible_servers(user_id) if row.enabled)


def _describe_builtin_tool(tool: BaseTool, reason: str) -> ToolShown:
    return ToolShown(
        name=tool.name,
        description=tool.description.partition("\n\n")[0],
        server=None,
        asks=tool.approval != "never" or tool.name in settings.ASK_BEFORE_TOOLS,
        available=not reason,
        reason=reason,
    )


def _list_mcp_tools(rows: Iterable[McpServer]) -> list[ToolShown]:
    """List tools as their servers last listed them, with the reason where a turn would leave one out."""
    listed: list[tuple[McpServer, mcp.ListedTool]] = [(row, tool) for row in rows for tool in row.tools]
    named = tool_listing.assign_tool_names(
        [ToolLocation(row.pk, row.name, tool["name"]) for row, tool in listed]
    )
    shown: list[ToolShown] = []
    offered: set[str] = set()
    for name, (row, tool) in sorted(zip(named, listed, strict=True), key=lambda pair: pair[0]):
        reason = tool["left_out"] or _server_problem(row) or _excess_reason(name, offered)
        if not reason:
            offered.add(name)
        shown.append(
            ToolShown(
                name=name,
                description=tool["description"],
                server=row.name,
                asks=tool["name"] not in row.never_ask and not (row.trusted and tool["read_only"]),
                available=not reason,
                reason=reason,
            )
        )
    return shown


def _server_problem(row: McpServer) -> str:
    is_backing_off = row.retry_at is not None and row.retry_at > timezone.now()
    return f"Its server isn't available: {row.last_error}" if is_backing_off else ""


def _excess_reason(name: str, offered: set[str]) -> str:
    if name in offered:
        return "Another tool has this name."
    return tool_listing.TOO_MANY_TOOLS_MESSAGE if len(offered) >= tool_listing.MAX_OFFERED_TOOLS else ""
