"""Judges a call of an MCP tool without its server, by what the server listed last (A11.6)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from copilot import mcp
from copilot.events import JSON
from copilot.permissions import Permissions
from copilot.tools import mcp_listing, mcp_schemas
from copilot.tools.mcp_listing import Place


def check(user_id: int, permissions: Permissions, name: str, arguments: Mapping[str, JSON]) -> bool:
    """Whether a server of the user's has such a tool and its schema can be checked here.

    Raises pydantic's ValidationError for arguments that the schema does not allow.
    """
    servers = mcp.usable(user_id, permissions) if name.startswith("mcp_") else ()
    listed = [(server, tool) for server in servers for tool in server.tools if not tool["left_out"]]
    named = mcp_listing.names([Place(server.id, server.name, tool["name"]) for server, tool in listed])
    if not permissions.allows_tool(name) or name not in named:
        return False
    _, tool = listed[named.index(name)]
    try:
        problems = mcp_schemas.misfits(arguments, tool["parameters"])
    except mcp_schemas.Unchecked:
        return False
    if problems:
        raise ValidationError.from_exception_data("arguments", [_problem(*one) for one in problems])
    return True


def _problem(place: tuple[str | int, ...], words: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("mcp", "{words}", {"words": words}), loc=place, input=None
    )
