"""A process that uses an MCP server as a worker does, and waits to be killed: prints the pids of all it started."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from config.core import accounts  # noqa: E402 - after the setup
from copilot.context import CHANNELS, TurnContext  # noqa: E402
from copilot.mcp import Server  # noqa: E402
from copilot.permissions import UNRESTRICTED  # noqa: E402
from copilot.tools import mcp_connection  # noqa: E402
from copilot.tools.base import Invocation  # noqa: E402
from copilot.tools.mcp_connection import Connection  # noqa: E402
from tests import mcp_rig, patience  # noqa: E402

patience.with_those_of(mcp_connection)  # its child begins by starting Python

if mcp_rig.is_closed():
    accounts.unprivileged_account = lambda uid=0: None
    accounts.account_problem = lambda uid=0: ""

CONTEXT = TurnContext(
    user_id=1,
    session_id=str(UUID(int=1)),
    turn_id=str(UUID(int=2)),
    fence=1,
    origin="web",
    permissions=UNRESTRICTED,
    channel=CHANNELS["web"],
)


async def use(command: list[str]) -> None:
    connection = Connection(
        Server(id=UUID(int=3), owner_id=None, name="files", transport="stdio", command=tuple(command))
    )
    await connection.listing()
    invocation = Invocation(context=CONTEXT, call_id="1", emit=lambda event: None)
    for tool in ("label", "spawn"):
        reply = await connection.call(tool, {}, invocation)
        print(reply.content[0].text.rstrip(".").rpartition(" ")[2], flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    engine = threading.Thread(target=lambda: asyncio.run(use(sys.argv[1:])))
    engine.start()
    engine.join()
