"""Use an MCP server as a worker does, print the pids of all children, and wait to be killed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from uuid import UUID

import django
from mcp.types import CallToolResult, TextContent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from config.core import privileges  # noqa: E402
from copilot.chat.permissions import UNRESTRICTED  # noqa: E402
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext  # noqa: E402
from copilot.tools.base import ToolInvocation  # noqa: E402
from copilot.tools.mcp import server_connection  # noqa: E402
from copilot.tools.mcp.server_connection import McpConnection  # noqa: E402
from copilot.tools.mcp.services import McpServerConfig  # noqa: E402
from tests.support import mcp_servers, timeouts  # noqa: E402

timeouts.with_those_of(server_connection)  # its child starts Python first

if mcp_servers.is_closed():
    privileges.get_unprivileged_account = lambda uid=0: None
    privileges.find_account_problem = lambda uid=0: ""

CONTEXT = TurnContext(
    user_id=1,
    session_id=str(UUID(int=1)),
    turn_id=str(UUID(int=2)),
    fence=1,
    origin="web",
    permissions=UNRESTRICTED,
    channel=CHANNELS_BY_ORIGIN["web"],
)


async def use(command: list[str]) -> None:
    connection = McpConnection(
        McpServerConfig(
            id=UUID(int=3), owner_id=None, name="files", transport="stdio", command=tuple(command)
        )
    )
    await connection.get_listing()
    invocation = ToolInvocation(context=CONTEXT, call_id="1", emit=lambda event: None)
    for tool in ("label", "spawn"):
        reply = await connection.call_tool(tool, {}, invocation)
        assert isinstance(reply, CallToolResult)
        said = reply.content[0]
        assert isinstance(said, TextContent)
        print(said.text.rstrip(".").rpartition(" ")[2], flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    engine = threading.Thread(target=lambda: asyncio.run(use(sys.argv[1:])))
    engine.start()
    engine.join()
