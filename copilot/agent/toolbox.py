"""The tools of one turn, as the loop sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from copilot.agent.ports import Emit
from copilot.context import Channel, TurnContext
from copilot.permissions import Permissions
from copilot.providers.base import ToolCall, ToolSpecification
from copilot.tools import execution, registry
from copilot.tools.base import AnyTool, CallOutcome


class TurnToolbox:
    """Shipped tools, then those that MCP servers brought; the same from the first round to the last."""

    def __init__(self, turn: TurnContext, outside: Sequence[AnyTool] = ()) -> None:
        self._context = turn
        self._outside = outside
        self._tools = registry.offered(turn.permissions, turn.channel, outside)
        self._specifications = tuple(tool.specification() for tool in self._tools)

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return self._specifications

    def polling(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._tools if tool.polling)

    def run(self, calls: Sequence[ToolCall], emit: Emit) -> AsyncIterator[CallOutcome]:
        return execution.run_group(calls, context=self._context, emit=emit, outside=self._outside)

    @staticmethod
    def repeatable(permissions: Permissions, channel: Channel) -> frozenset[str]:
        """Tools that may run a second time after a lost worker (A9.1)."""
        return frozenset(tool.name for tool in registry.offered(permissions, channel) if tool.repeatable)
