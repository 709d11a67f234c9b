"""Offer the tools of one turn to the loop, including those of the user's MCP servers."""

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
    """Hold the built-in tools and those of MCP servers; they stay the same during a turn."""

    def __init__(
        self,
        turn: TurnContext,
        mcp_tools: Sequence[BaseTool] = (),
        *,
        starting: execution.StartHook = execution.start_immediately,
        checking: execution.ApprovalCheck = execution.skip_approval_check,
    ) -> None:
        """Collect the tools. A tool of the caller replaces one of ours with the same name."""
        self._context = turn
        self._mcp_tools = mcp_tools
        self._starting = starting
        self._checking = checking
        request = turn.inbound_context.api_request
        client_tools = request.tools if request is not None else ()
        self._client_names = frozenset(tool.name for tool in client_tools)
        offered = registry.list_offered_tools(turn.permissions, turn.channel, mcp_tools)
        self._tools = [tool for tool in offered if tool.name not in self._client_names]
        self._by_name = {tool.name: tool for tool in self._tools}
        self._specifications = (
            *(tool.specification() for tool in self._tools),
            *(tool.to_specification() for tool in client_tools),  # last: the others stay a cached prefix
        )

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return self._specifications

    def get(self, name: str) -> BaseTool | None:
        return self._by_name.get(name)

    def list_polling_tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._tools if tool.polling)

    def list_client_tools(self) -> frozenset[str]:
        return self._client_names

    def run_calls(
        self, calls: Sequence[ToolCall], emit: EmitEvent, *, taken: int = 0
    ) -> AsyncIterator[ToolCallOutcome]:
        return execution.run_tool_calls(
            calls,
            context=self._context,
            emit=emit,
            outside=self._mcp_tools,
            starting=self._starting,
            checking=self._checking,
            taken=taken,
        )


@dataclass(frozen=True, kw_only=True)
class ToolTraits:
    """Names of a turn's tools, by what may happen to calls that were left open."""

    repeatable: frozenset[str]  # may run a second time
    held: frozenset[str]  # have not run unless somebody approved, or run at the caller


def find_tool_traits(
    permissions: Permissions, channel: Channel, client_tools: frozenset[str] = frozenset()
) -> ToolTraits:
    offered = registry.list_offered_tools(permissions, channel)
    return ToolTraits(
        repeatable=frozenset(tool.name for tool in offered if tool.repeatable),
        held=client_tools.union(tool.name for tool in offered if tool.approval != "never"),
    )


# --- MCP servers ---

SERVER_UNAVAILABLE = "server_unavailable"


async def gather_mcp_tools(servers: Sequence[McpServerConfig], recorder: TurnRecorder) -> McpToolset:
    """Collect the tools of MCP servers, and post a notice once per session for those that are unavailable."""
    if not servers:
        return EMPTY_MCP_TOOLSET
    redaction.set_user_secrets(value for server in servers for value in server.own_secret_values())
    connections = await recorder.services.connect_mcp()
    toolset = await connections.collect_tools(servers, recorder.turn.permissions)
    if toolset.absent:
        noticed = await run_in_thread(
            message_history.list_notice_details, recorder.turn.session_id, SERVER_UNAVAILABLE
        )
        for name in dict.fromkeys(toolset.absent):
            if name not in noticed:
                await run_shielded(recorder.post_notice(SERVER_UNAVAILABLE, name))
    return toolset
