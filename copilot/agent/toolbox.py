"""The tools of one turn, as the loop sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from copilot.agent.ports import Emit
from copilot.context import Channel, TurnContext
from copilot.permissions import Permissions
from copilot.providers.base import ToolCall, ToolSpecification
from copilot.tools import execution, registry
from copilot.tools.base import AnyTool, CallOutcome


class TurnToolbox:
    """Shipped tools, then those that MCP servers brought; the same from the first round to the last."""

    def __init__(
        self,
        turn: TurnContext,
        outside: Sequence[AnyTool] = (),
        *,
        starting: execution.Starting = execution.at_once,
        checking: execution.Checking = execution.as_it_is,
    ) -> None:
        self._context = turn
        self._outside = outside
        self._starting = starting
        self._checking = checking
        self._tools = registry.offered(turn.permissions, turn.channel, outside)
        self._by_name = {tool.name: tool for tool in self._tools}
        self._specifications = tuple(tool.specification() for tool in self._tools)

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return self._specifications

    def get(self, name: str) -> AnyTool | None:
        return self._by_name.get(name)

    def polling(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._tools if tool.polling)

    def run(self, calls: Sequence[ToolCall], emit: Emit, *, taken: int = 0) -> AsyncIterator[CallOutcome]:
        return execution.run_group(
            calls,
            context=self._context,
            emit=emit,
            outside=self._outside,
            starting=self._starting,
            checking=self._checking,
            taken=taken,
        )


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What the names of a turn's tools say about calls that were left open."""

    repeatable: frozenset[str]  # may run a second time (A9.1)
    never_unasked: frozenset[str]  # have not run unless somebody agreed (A11.1)


def abilities(permissions: Permissions, channel: Channel) -> Abilities:
    offered = registry.offered(permissions, channel)
    return Abilities(
        repeatable=frozenset(tool.name for tool in offered if tool.repeatable),
        never_unasked=frozenset(tool.name for tool in offered if tool.approval != "never"),
    )
