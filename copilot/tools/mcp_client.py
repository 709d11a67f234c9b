"""Connections to MCP servers, and their tools as a turn sees them (A28).

Each connection lives in a task of its own, which alone enters and leaves what the SDK opens; turns only wait for it
and send through it. A `_Keeper` keeps one connection per (owner, server, version) and makes it anew when it was lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import httpx2
from django.db import DatabaseError
from mcp import Client, Implementation, MCPError, types
from mcp.types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from copilot import mcp, redaction
from copilot.bridge import in_thread
from copilot.events import JSON
from copilot.mcp import Server
from copilot.permissions import Permissions
from copilot.providers.base import ToolSpecification
from copilot.tools import mcp_listing, mcp_results, mcp_wire
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, AnyTool, Bound, Invocation, ToolFailed, ToolOutput
from copilot.tools.mcp_listing import Described, Place

CONNECT_SECONDS = 10.0  # with the list of tools (A28.2)
IDLE_SECONDS = 600.0
CLOSE_SECONDS = 5.0  # for a last word to the server
MOST_LISTED = 500  # a server that lists without end is cut off
TOO_SLOW = f"It did not answer within {CONNECT_SECONDS:g} s."
FORGOTTEN = (types.INVALID_REQUEST, "Session terminated")  # how the SDK says that a server lost our session
PROGRESS_SECONDS = 1.0  # at most one remark of a server's per second reaches people

_log = logging.getLogger(__name__)
_Reply = types.CallToolResult | types.InputRequiredResult
_reply: TypeAdapter[_Reply] = TypeAdapter(_Reply)
# What the SDK and the ways out of it raise; it wraps what its tasks raised in groups.
_PROBLEMS = (
    MCPError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    OSError,
    ToolFailed,
    ValueError,
    RuntimeError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    ExceptionGroup,
)


class Unavailable(Exception):
    """A server that cannot be reached or does not answer as one, in a sentence for people."""


class Forgotten(Exception):
    """The server does not know us any more, so it did nothing."""


class Lost(Exception):
    """The connection went while a call was under way: nobody knows whether it was carried out."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a server said when it was reached."""

    tools: tuple[Described, ...]
    instructions: str


# --- one connection ----------------------------------------------------------------------------------


class Connection:
    """One way to one server, from being opened until it is closed, idle or lost."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.over = False
        self._client: Client | None = None
        self._closing = anyio.Event()
        self._used_at = time.monotonic()
        self._calls = 0
        self._listed: asyncio.Future[Listing] = asyncio.get_running_loop().create_future()
        # Without the context of the turn that happened to come first: others will use it.
        self._task = asyncio.create_task(self._live(), context=contextvars.Context(), name="mcp connection")

    async def listing(self) -> Listing:
        """Waits for the list of tools, no longer than connecting and listing may take."""
        await asyncio.wait({self._listed}, timeout=CONNECT_SECONDS)
        if not self._listed.done():
            self.close()
            raise Unavailable(TOO_SLOW)
        return self._listed.result()

    async def call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> _Reply:
        """Without the SDK's own look at the result: a hostile schema could make that last for ever."""
        assert self._client is not None  # it was listed
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        )
        self._calls += 1
        try:
            return await self._client.session.send_request(
                request,
                _reply,
                request_read_timeout_seconds=MAX_TOOL_WAIT_SECONDS,
                progress_callback=_Progress(invocation),
            )
        except MCPError as problem:
            if problem.code == CONNECTION_CLOSED:
                raise Lost from problem
            if (problem.code, problem.message) == FORGOTTEN:
                raise Forgotten from problem
            raise
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()

    def close(self) -> None:
        self.over = True
        self._closing.set()

    async def closed(self) -> None:
        """After its last word; one that takes too long is cut short."""
        self.close()
        await asyncio.wait({self._task})

    def on_end(self, act: Callable[[Connection], None]) -> None:
        self._task.add_done_callback(lambda task: act(self))

    async def _live(self) -> None:
        secrets = self.server.secret_values()
        redaction.borrow(secrets)
        try:
            await self._live_until_closed()
        except _PROBLEMS as problem:
            self._end(described(problem))
        finally:
            self.over = True
            self._end("It hung up.")
            redaction.give_back(secrets)

    async def _live_until_closed(self) -> None:
        """The scope is around everything that is opened: what ends it, ends that in the right order."""
        with anyio.CancelScope(deadline=anyio.current_time() + CONNECT_SECONDS) as scope:
            client = Client(
                mcp_wire.reached(self.server, self.close),
                client_info=Implementation(name="Pilothouse", version="1"),
                cache=None,
                # Without callbacks for sampling, elicitation and roots the SDK declines them (A28.5).
            )
            async with client:
                tools = await _tools_of(client)
                listing = Listing(
                    tools=await asyncio.to_thread(mcp_listing.describe, tools),
                    instructions=client.instructions or "",
                )
                self._client = client
                scope.deadline = math.inf
                if not self._listed.done():
                    self._listed.set_result(listing)
                await self._until_idle()
                scope.deadline = anyio.current_time() + CLOSE_SECONDS
        if scope.cancelled_caught:
            self._end(TOO_SLOW)

    async def _until_idle(self) -> None:
        while not self._closing.is_set():
            idle = time.monotonic() - self._used_at
            if not self._calls and idle >= IDLE_SECONDS:
                self.close()
                return
            with anyio.move_on_after(IDLE_SECONDS - idle if not self._calls else IDLE_SECONDS):
                await self._closing.wait()

    def _end(self, why: str) -> None:
        if not self._listed.done():
            self._listed.set_exception(Unavailable(why))
            self._listed.exception()  # nobody may be waiting any more


async def _tools_of(client: Client) -> list[types.Tool]:
    """All pages of the list."""
    found: list[types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) >= MOST_LISTED:
            return found[:MOST_LISTED]


class _Progress:
    """What a server says while it works, seldom enough to be read."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._told_at = -math.inf

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
            self._invocation.progress(mcp_listing.foreign(message or share))


# --- all of a process --------------------------------------------------------------------------------


class _Keeper:
    """Keeps one connection to one server, and counts how often it was lost without having been of use."""

    def __init__(self, server: Server, opened: set[Connection]) -> None:
        self.server = server
        self.losses = 0
        self._opened = opened
        self._connection: Connection | None = None
        self._attempt: asyncio.Task[tuple[Connection, Listing]] | None = None

    @property
    def stands(self) -> bool:
        """Connected, or about to be."""
        busy = self._attempt is not None and not self._attempt.done()
        return busy or (self._connection is not None and not self._connection.over)

    async def connected(self) -> tuple[Connection, Listing]:
        """The connection that stands, or a new one; those who wait share one attempt."""
        if self._attempt is None or not self.stands:
            self._attempt = asyncio.create_task(self._connect(), context=contextvars.Context())
            self._attempt.add_done_callback(_look_away)
        return await asyncio.shield(self._attempt)

    async def call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> _Reply:
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

    async def _call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> _Reply:
        connection, _ = await self.connected()
        try:
            return await connection.call(tool, arguments, invocation)
        except Forgotten:  # before it did anything
            connection.close()
            connection, _ = await self.connected()
            return await connection.call(tool, arguments, invocation)

    def _unavailable(self, why: str) -> ToolFailed:
        return ToolFailed("server_unavailable", f"The MCP server {self.server.name}: {why}")

    async def _connect(self) -> tuple[Connection, Listing]:
        self._connection = connection = Connection(self.server)
        self._opened.add(connection)
        connection.on_end(self._opened.discard)
        try:
            listing = await connection.listing()
        except Unavailable as problem:
            await _stored(partial(mcp.failed, self.server, str(problem)))
            raise
        shown = tuple(tool.listed() for tool in listing.tools)
        if self.server.failures or shown != self.server.tools:
            await _stored(partial(mcp.listed, self.server, shown))
        return connection, listing


def _look_away(attempt: asyncio.Task[tuple[Connection, Listing]]) -> None:
    """Whoever asked for it may have been stopped; without this the loop would report a failure."""
    if not attempt.cancelled():
        attempt.exception()


async def _stored(write: partial[None]) -> None:
    """What becomes of a server is worth a note, not a turn."""
    try:
        await in_thread(write)
    except DatabaseError as problem:
        _log.warning("the state of an MCP server could not be stored: %s", type(problem).__name__)


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What the servers of a turn bring to it."""

    tools: tuple[AnyTool, ...] = ()
    instructions: str = ""
    absent: tuple[str, ...] = ()  # names of the servers whose tools are missing


NOTHING_OUTSIDE = Outside()


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
        absent = [server.name for server, found in zip(servers, listings, strict=True) if not found]
        said = ((server.name, listing.instructions) for server, listing in answered)
        return Outside(
            tools=self._offered(answered, permissions),
            instructions=mcp_listing.instructions(said),
            absent=tuple(absent),
        )

    async def try_once(self, server: Server) -> Listing:
        """For somebody who wants to know now; raises Unavailable."""
        if server.absent:
            raise Unavailable(server.absent)
        try:
            _, listing = await _Keeper(server, self._opened).connected()
        finally:
            await self.close()
        return listing

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
            _, listing = await self._keeper(server).connected()
        except Unavailable:
            return None
        return listing

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
        self, answered: Iterable[tuple[Server, Listing]], permissions: Permissions
    ) -> tuple[AnyTool, ...]:
        """By name, the first 64; of two with one name, the first (A28.4)."""
        described = [
            (server, tool) for server, listing in answered for tool in listing.tools if not tool.left_out
        ]
        named = mcp_listing.names([Place(server.id, server.name, tool.tool) for server, tool in described])
        tools: dict[str, AnyTool] = {}
        for name, (server, tool) in zip(named, described, strict=True):
            if permissions.allows_tool(name):
                tools.setdefault(name, _tool(name, server, tool, self._keeper(server)))
        return tuple(tools[name] for name in sorted(tools)[: mcp_listing.MOST_TOOLS])


# --- tools -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class McpTool(AnyTool):
    parameters: Mapping[str, JSON]
    there: str  # its name at the server
    server: str
    keeper: _Keeper

    def specification(self) -> ToolSpecification:
        return ToolSpecification(name=self.name, description=self.description, parameters=self.parameters)

    def bind(self, arguments: Mapping[str, JSON]) -> Bound:
        mcp_listing.check(arguments, self.parameters)
        return partial(self._run, arguments)

    async def _run(self, arguments: Mapping[str, JSON], invocation: Invocation) -> ToolOutput:
        try:
            reply = await self.keeper.call(self.there, arguments, invocation)
        except MCPError as problem:
            raise ToolFailed("refused", described(problem)) from problem
        except ValidationError as problem:
            raise ToolFailed("unreadable", described(problem)) from problem
        return mcp_results.output(self.server, reply)


def _tool(name: str, server: Server, tool: Described, keeper: _Keeper) -> McpTool:
    """It asks, unless an administrator said otherwise; a hint counts from a trusted server alone (A28.6)."""
    believed = server.trusted and tool.read_only
    return McpTool(
        name=name,
        description=f"{tool.description}\n(A tool of the MCP server {server.name}.)".strip(),
        timeout_seconds=MAX_TOOL_WAIT_SECONDS,
        read_only=believed,
        network=True,
        approval="never" if believed or tool.tool in server.never_ask else "ask",
        parameters=tool.parameters,
        there=tool.tool,
        server=server.name,
        keeper=keeper,
    )


# --- words -------------------------------------------------------------------------------------------


def described(problem: BaseException) -> str:
    """One sentence for people; what libraries say may name inner addresses and secrets."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    match problem:
        case ToolFailed():
            return problem.message
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            return "It hung up."
        case MCPError():
            return f"It refused: {redaction.redact(mcp_listing.foreign(problem.message))[:300]}"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return "It could not be reached."
        case httpx2.TimeoutException() | TimeoutError():
            return "It did not answer in time."
        case httpx2.HTTPError() | httpx2.InvalidURL():
            return "Its answer broke off or could not be read."
        case ValidationError():
            return "Its answer is not what the protocol says."
        case OSError():
            return "It could not be started."
        case _:
            return f"It does not work as an MCP server ({type(problem).__name__})."
