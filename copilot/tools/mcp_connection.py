"""One connection to an MCP server, from being opened until it is closed, idle or lost (A28.2).

It lives in a task of its own, which alone enters and leaves what the SDK opens; others only wait for it and send
through it.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import httpx2
from mcp import Client, Implementation, MCPError, types
from mcp.types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from copilot import redaction
from copilot.events import JSON
from copilot.mcp import Server
from copilot.tools import mcp_listing, mcp_wire
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Invocation, ToolFailed
from copilot.tools.mcp_listing import Described

CONNECT_SECONDS = 10.0  # with the list of tools (A28.2)
IDLE_SECONDS = 600.0
CLOSE_SECONDS = 5.0  # for a last word to the server
REDACTED_SECONDS = (
    60.0  # after the end of everybody's server: its last answers are still on their way to rows
)
MOST_LISTED = 500  # a server that lists without end is cut off
PROGRESS_SECONDS = 1.0  # at most one remark of a server's per second reaches people
TOO_SLOW = f"It did not answer within {CONNECT_SECONDS:g} s."

Reply = types.CallToolResult | types.InputRequiredResult
_reply: TypeAdapter[Reply] = TypeAdapter(Reply)
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


class Connection:
    """One way to one server, from being opened until it is closed, idle or lost."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.over = False
        self._client: Client | None = None
        self._scope: anyio.CancelScope | None = None
        self._closing = anyio.Event()
        self._used_at = time.monotonic()
        self._calls = 0
        self._forgotten = False
        self._changed = False  # the server says that it has other tools now
        self._listed: asyncio.Future[Listing] = asyncio.get_running_loop().create_future()
        # Without the context of the turn that happened to come first: others will use it.
        self._task = asyncio.create_task(self._live(), context=contextvars.Context(), name="mcp connection")

    async def listing(self) -> Listing:
        """Waits for the list of tools, no longer than connecting and listing may take."""
        await asyncio.wait({self._listed}, timeout=CONNECT_SECONDS)
        if not self._listed.done():
            self.close()
            raise Unavailable(TOO_SLOW)
        if self._changed:
            await self._list_again()
        return self._listed.result()

    async def _list_again(self) -> None:
        """For the turns that begin from now on: one that runs keeps the tools it began with (A28.7)."""
        assert self._client is not None  # it has spoken
        self._changed = False  # before the question: what changes meanwhile is asked for the next time
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                listing = await self._list(self._client)
        except _PROBLEMS as problem:
            self.close()
            raise Unavailable(described(problem, self.server)) from problem
        self._listed = asyncio.get_running_loop().create_future()
        self._listed.set_result(listing)

    async def _list(self, client: Client) -> Listing:
        redact = redaction_for(self.server)
        described = await asyncio.to_thread(mcp_listing.describe, await _tools_of(client), redact)
        return Listing(tools=described, instructions=redact(client.instructions or ""))

    async def _heard(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed = True

    async def call(self, tool: str, arguments: Mapping[str, JSON], invocation: Invocation) -> Reply:
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
            if self._forgotten:
                raise Forgotten from problem
            raise
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()

    def close(self) -> None:
        self.over = True
        self._closing.set()

    async def closed(self) -> None:
        """After its last word; one that takes too long is cut short, and one that is only being opened at once."""
        self.close()
        if self._client is None and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait({self._task})

    def on_end(self, act: Callable[[Connection], None]) -> None:
        self._task.add_done_callback(lambda task: act(self))

    def _forget(self) -> None:
        self._forgotten = True

    async def _live(self) -> None:
        shared = self.server.secret_values() if self.server.owner_id is None else []
        redaction.borrow(shared)
        redaction.use_own_secrets(self.server.own_secret_values())
        try:
            await self._live_until_closed()
        except _PROBLEMS as problem:
            self._end(described(problem, self.server))
        finally:
            self.over = True
            self._end("It hung up.")
            asyncio.get_running_loop().call_later(REDACTED_SECONDS, redaction.give_back, shared)

    async def _live_until_closed(self) -> None:
        """The scope is around everything that is opened: what ends it, ends that in the right order."""
        with anyio.CancelScope(deadline=anyio.current_time() + CONNECT_SECONDS) as scope:
            self._scope = scope
            client = Client(
                mcp_wire.reached(self.server, gone=self.close, forgotten=self._forget),
                client_info=Implementation(name="Pilothouse", version="1"),
                cache=None,
                message_handler=self._heard,
                # Without callbacks for sampling, elicitation and roots the SDK declines them (A28.5).
            )
            async with client:
                listing = await self._list(client)
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


# --- words -------------------------------------------------------------------------------------------


def redaction_for(server: Server) -> Callable[[str], str]:
    """A user's server was never given a secret of the installation, so what it says cannot hold one."""
    return redaction.redact if server.owner_id is None else redaction.redact_user_text


def described(problem: BaseException, server: Server) -> str:
    """One sentence for people; what libraries say may name inner addresses and secrets."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    match problem:
        case ToolFailed():
            return problem.message
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            return "It hung up."
        case MCPError():
            return f"It refused: {redaction_for(server)(mcp_listing.foreign(problem.message))[:300]}"
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
