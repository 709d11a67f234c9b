"""The tools of one turn, as the loop sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from config.core import redaction
from config.core.batching import run_shielded
from config.core.db import run_in_thread
from copilot.agent.interfaces import EmitEvent
from copilot.agent.recorder import TurnRecorder
from copilot.chat import message_history
from copilot.chat.permissions import Permissions
from copilot.chat.turn_context import Channel, TurnContext
from copilot.providers.base import ToolCall, ToolSpecification
from copilot.tools import execution, registry
from copilot.tools.base import EMPTY_MCP_TOOLSET, BaseTool, McpToolset, ToolCallOutcome
from copilot.tools.mcp.services import McpServerConfig


class TurnToolbox:
    """Shipped tools, then those that MCP servers brought; the same from the first round to the last."""

    def __init__(
        self,
        turn: TurnContext,
        outside: Sequence[BaseTool] = (),
        *,
        starting: execution.StartHook = execution.start_immediately,
        checking: execution.ApprovalCheck = execution.skip_approval_check,
    ) -> None:
        self._context = turn
        self._outside = outside
        self._starting = starting
        self._checking = checking
        self._tools = registry.list_offered_tools(turn.permissions, turn.channel, outside)
        self._by_name = {tool.name: tool for tool in self._tools}
        self._specifications = tuple(tool.specification() for tool in self._tools)

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return self._specifications

    def get(self, name: str) -> BaseTool | None:
        return self._by_name.get(name)

    def list_polling_tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._tools if tool.polling)

    def run_calls(
        self, calls: Sequence[ToolCall], emit: EmitEvent, *, taken: int = 0
    ) -> AsyncIterator[ToolCallOutcome]:
        return execution.run_tool_calls(
            calls,
            context=self._context,
            emit=emit,
            outside=self._outside,
            starting=self._starting,
            checking=self._checking,
            taken=taken,
        )


@dataclass(frozen=True, kw_only=True)
class ToolTraits:
    """What the names of a turn's tools say about calls that were left open."""

    repeatable: frozenset[str]  # may run a second time (A9.1)
    never_unasked: frozenset[str]  # have not run unless somebody agreed (A11.1)


def find_tool_traits(permissions: Permissions, channel: Channel) -> ToolTraits:
    offered = registry.list_offered_tools(permissions, channel)
    return ToolTraits(
        repeatable=frozenset(tool.name for tool in offered if tool.repeatable),
        never_unasked=frozenset(tool.name for tool in offered if tool.approval != "never"),
    )


# MERGED agent.outside: The MCP servers of a turn: asked once before its first request, and missed aloud once per session (A28.2, A28.3).

SERVER_UNAVAILABLE = "server_unavailable"


async def gather_mcp_tools(servers: Sequence[McpServerConfig], recorder: TurnRecorder) -> McpToolset:
    """What the servers bring. A user without servers waits for nothing here."""
    if not servers:
        return EMPTY_MCP_TOOLSET
    redaction.set_user_secrets(value for server in servers for value in server.own_secret_values())
    connections = await recorder.services.connect_mcp()
    outside = await connections.collect_tools(servers, recorder.turn.permissions)
    if outside.absent:
        told = await run_in_thread(
            message_history.list_notice_details, recorder.turn.session_id, SERVER_UNAVAILABLE
        )
        for name in dict.fromkeys(outside.absent):
            if name not in told:
                await run_shielded(recorder.post_notice(SERVER_UNAVAILABLE, name))
    return outside
