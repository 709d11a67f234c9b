"""Judges a call of an MCP tool without its server, by what the server listed last (A11.6)."""

from __future__ import annotations

from collections.abc import Mapping

from copilot import mcp
from copilot.events import JSON
from copilot.permissions import Permissions
from copilot.tools import mcp_listing
from copilot.tools.mcp_listing import Place


def check(user_id: int, permissions: Permissions, name: str, arguments: Mapping[str, JSON]) -> bool:
    """Whether a server of the user's has such a tool; raises pydantic's ValidationError for bad arguments."""
    servers = mcp.usable(user_id, permissions) if name.startswith("mcp_") else ()
    listed = [(server, tool) for server in servers for tool in server.tools if not tool["left_out"]]
    named = mcp_listing.names([Place(server.id, server.name, tool["name"]) for server, tool in listed])
    if not permissions.allows_tool(name) or name not in named:
        return False
    _, tool = listed[named.index(name)]
    mcp_listing.check(arguments, tool["parameters"])
    return True
