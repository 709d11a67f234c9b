"""The MCP servers of a process, and their tools as a turn sees them (A28).

A `_Keeper` keeps one connection per (owner, server, version) and makes it anew when it was lost; turns share it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from django.db import DatabaseError
from mcp import MCPError
from pydantic import ValidationError

from copilot import mcp
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.events import JSON
from copilot.mcp import Server
from copilot.permissions import Permissions
from copilot.provenance import source_label
from copilot.providers.base import ToolSpecification
from copilot.tools import mcp_listing, mcp_results
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, AnyTool, Bound, Invocation, ToolFailed, ToolOutput
from copilot.tools.mcp_connection import (
    CLOSE_SECONDS,
    Connection,
    Forgotten,
    Listing,
    Lost,
    Reply,
    Unavailable,
    described,
)
from copilot.tools.mcp_listing import Described, Place
from copilot.tools.outside import Outside

_log = logging.getLogger(__name__)


class _Keeper:
    """Keeps one connection to one server, and counts how often it was lost without having been of use."""

    def __init__(self, server: Server, opened: set[Connection]) -> None:
        self.server = server
        self.losses = 0
        self._opened = opened
        self._connection: Connection | None = None
        self._attempt: asyncio.Task[Connection] | None = None
        self._noted: Listing | None = None

    @property
    def stands(self) -> bool:
        """Connected, or about to be."""
        busy = self._attempt is not None and not self._attempt.done()
        return busy or (self._connection is not None and not self._connection.over)

    async def listing(self) -> Listing:
        """What the server lists now; people see the same."""
        connection = await self.connected()
        try:
            listing = await connection.listing()
        except Unavailable as problem:
            await _stored(partial(mcp.failed, self.server, str(problem)))
            raise
        if listing is not self._noted:
            self._noted = listing
            await self._note(listing)
        return listing

    async def connected(self) -> Connection:
        """The connection that stands, or a new one; those who wait share one attempt."""
        if self._attempt is None or not self.stands:
            self._attempt = asyncio.create_task(self._connect(), context=contextvars.Context())
            self._attempt.add_done_callback(_look_away)
        return await asyncio.shield(self._attempt)

    async def call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> Reply:
        """A call that was cut off is not repeated; the next one finds a new connection, once (A28.3)."""
        if self.losses > 1:
            raise self._unavailable("it keeps hanging up.")
        try:
            reply = await self._call(tool, arguments, invocation)
        except Unavailable as problem:
            self.losses = 2
            raise self._unavailable(str(problem)) from problem
        except Lost as problem:
            self.losses += 1
            if self.losses > 1:
                await _stored(partial(mcp.failed, self.server, "It hung up during two calls in a row."))
            raise ToolFailed(
                "connection_lost",
                f"The MCP server {self.server.name} hung up during the call; whether it was done is unknown.",
            ) from problem
        self.losses = 0
        return reply

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def abandon(self) -> None:
        """Give up an attempt that nobody waits for any more; it says nothing about the server."""
        if self._attempt is not None:
            self._attempt.cancel()

    async def _call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> Reply:
        connection = await self.connected()
        try:
            return await connection.call(tool, arguments, invocation)
        except Forgotten:  # before it did anything
            connection.close()
            connection = await self.connected()
            return await connection.call(tool, arguments, invocation)

    def _unavailable(self, why: str) -> ToolFailed:
        return ToolFailed("server_unavailable", f"The MCP server {self.server.name}: {why}")

    async def _connect(self) -> Connection:
        self._connection = connection = Connection(self.server)
        self._opened.add(connection)
        connection.on_end(self._opened.discard)
        try:
            self._noted = await connection.listing()
        except Unavailable as problem:
            await _stored(partial(mcp.failed, self.server, str(problem)))
            raise
        await self._note(self._noted)
        return connection

    async def _note(self, listing: Listing) -> None:
        shown = tuple(tool.listed() for tool in listing.tools)
        if self.server.failures or shown != self.server.tools:
            await _stored(partial(mcp.listed, self.server, shown))
            self.server = replace(self.server, failures=0, tools=shown)


def _look_away(attempt: asyncio.Task[Connection]) -> None:
    """Whoever asked for it may have been stopped; without this the loop would report a failure."""
    if not attempt.cancelled():
        attempt.exception()


async def _stored(write: partial[None]) -> None:
    """What becomes of a server is worth a note, not a turn."""
    try:
        await in_thread(write)
    except DatabaseError as problem:
        _log.warning("the state of an MCP server could not be stored: %s", type(problem).__name__)


class Connections:
    """One per process, on its event loop."""

    def __init__(self) -> None:
        self._keepers: dict[tuple[object, ...], _Keeper] = {}
        self._opened: set[Connection] = set()

    async def gather(self, servers: Sequence[Server], permissions: Permissions) -> Outside:
        """All servers at once; one that fails is absent, and never fails the turn (A28.3)."""
        self._tidy(servers)
        listings = await asyncio.gather(*(self._listing(server) for server in servers))
        answered = [(server, found) for server, found in zip(servers, listings, strict=True) if found]
        away = [server for server, found in zip(servers, listings, strict=True) if not found]
        said = ((server.name, listing.instructions) for server, listing in answered)
        return Outside(
            tools=self._offered(answered, permissions, away=_last_known(away)),
            instructions=mcp_listing.instructions(said),
            absent=tuple(server.name for server in away),
        )

    async def try_once(self, server: Server) -> Listing:
        """For somebody who wants to know now; raises Unavailable."""
        if server.absent:
            raise Unavailable(server.absent)
        keeper = _Keeper(server, self._opened)
        try:
            return await keeper.listing()
        finally:
            keeper.abandon()
            await self.close()

    async def close(self) -> None:
        """Before the process leaves: every connection is let go of, and children with them."""
        self._keepers.clear()
        opened = [connection.closed() for connection in self._opened]
        if opened:
            await asyncio.wait([asyncio.ensure_future(end) for end in opened], timeout=CLOSE_SECONDS)

    async def _listing(self, server: Server) -> Listing | None:
        if server.absent:
            return None
        try:
            return await self._keeper(server).listing()
        except Unavailable:
            return None

    def _keeper(self, server: Server) -> _Keeper:
        return self._keepers.setdefault(server.key, _Keeper(server, self._opened))

    def _tidy(self, servers: Sequence[Server]) -> None:
        """What is tried again begins anew; what ended by itself or has another configuration now is forgotten."""
        newest = {server.id: server.version for server in servers}
        for key, keeper in tuple(self._keepers.items()):
            outdated = keeper.server.version < newest.get(keeper.server.id, 0)
            if outdated:
                keeper.close()
            if outdated or not keeper.stands:
                del self._keepers[key]

    def _offered(
        self,
        answered: Iterable[tuple[Server, Listing]],
        permissions: Permissions,
        *,
        away: Sequence[Place] = (),
    ) -> tuple[AnyTool, ...]:
        """By name, the first 64; of two with one name, the first (A28.4). What is away keeps its part of a name."""
        described = [
            (server, tool) for server, listing in answered for tool in listing.tools if not tool.left_out
        ]
        here = [Place(server.id, server.name, tool.tool) for server, tool in described]
        named = mcp_listing.names([*here, *away])
        tools: dict[str, AnyTool] = {}
        for name, (server, tool) in zip(named, described, strict=False):
            if permissions.allows_tool(name):
                tools.setdefault(name, _tool(name, server, tool, self._keeper(server)))
        return tuple(tools[name] for name in sorted(tools)[: mcp_listing.MOST_TOOLS])


def _last_known(away: Sequence[Server]) -> list[Place]:
    """The tools of servers that do not answer now, as they listed them last."""
    return [
        Place(server.id, server.name, tool["name"])
        for server in away
        for tool in server.tools
        if not tool["left_out"]
    ]


# --- tools -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class McpTool(AnyTool):
    parameters: Mapping[str, JSON]
    there: str  # its name at the server
    server: str
    keeper: _Keeper

    def specification(self) -> ToolSpecification:
        return ToolSpecification(name=self.name, description=self.description, parameters=self.parameters)

    def pin(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        """The very server in this configuration, and its tool: a name here may come to mean another one."""
        server = self.keeper.server
        return {"server_id": str(server.id), "version": server.version, "tool": self.there}

    def bind(self, arguments: Mapping[str, JSON]) -> Bound:
        mcp_listing.check(arguments, self.parameters)
        return partial(self._run, arguments)

    async def _run(self, arguments: Mapping[str, JSON], invocation: Invocation) -> ToolOutput:
        try:
            reply = await self.keeper.call(self.there, arguments, invocation)
        except MCPError as problem:
            raise ToolFailed("refused", described(problem, self.keeper.server)) from problem
        except ValidationError as problem:
            raise ToolFailed("unreadable", described(problem, self.keeper.server)) from problem
        return mcp_results.output(self.server, reply)


def _tool(name: str, server: Server, tool: Described, keeper: _Keeper) -> McpTool:
    """It asks, unless an administrator said otherwise; a hint counts from a trusted server alone (A28.6)."""
    believed = server.trusted and tool.read_only
    return McpTool(
        name=name,
        description=f"{tool.description}\n(A tool of the MCP server {server.name}.)".strip(),
        timeout_seconds=MAX_TOOL_WAIT_SECONDS,
        read_only=believed,
        returns_user_text=server.owner_id is not None,
        untrusted=source_label(f"the MCP server {server.name}"),
        network=True,
        approval="never" if believed or tool.tool in server.never_ask else "ask",
        parameters=tool.parameters,
        there=tool.tool,
        server=server.name,
        keeper=keeper,
    )
