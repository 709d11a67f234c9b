"""The MCP servers of a turn: asked once before its first request, and missed aloud once per session (A28.2, A28.3)."""

from __future__ import annotations

from collections.abc import Sequence

from copilot import history, redaction
from copilot.agent.commits import uncut
from copilot.agent.recorder import Recorder
from copilot.bridge import in_thread
from copilot.mcp import Server
from copilot.tools.outside import NOTHING_OUTSIDE, Outside

UNAVAILABLE = "server_unavailable"


async def gathered(servers: Sequence[Server], recorder: Recorder) -> Outside:
    """What the servers bring. A user without servers waits for nothing here."""
    if not servers:
        return NOTHING_OUTSIDE
    redaction.use_own_secrets(value for server in servers for value in server.own_secret_values())
    connections = await recorder.services.reaching_out()
    outside = await connections.gather(servers, recorder.turn.permissions)
    if outside.absent:
        told = await in_thread(history.noticed, recorder.turn.session_id, UNAVAILABLE)
        for name in dict.fromkeys(outside.absent):
            if name not in told:
                await uncut(recorder.notice(UNAVAILABLE, name))
    return outside
