"""List all tools for people: what each does, whether it works in this installation, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.utils import timezone

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
        """Return the first sentence; the rest tells the model how to call the tool."""
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
