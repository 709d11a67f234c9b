"""Hold one connection to an MCP server, from opening it until it is closed, idle or lost.

It lives in a task of its own, which alone enters and leaves what the SDK opens; others only wait for it and
send through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import anyio
import httpx2
from django.conf import settings
from mcp import Client, Implementation, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from config.core import privileges, redaction, url_safety
from config.core.json_values import JSON
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, ToolError, ToolInvocation
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp import tool_listing
from copilot.tools.mcp.services import McpServerConfig
from copilot.tools.mcp.tool_listing import DescribedTool
from copilot.tools.sandbox import workspace_sync
from copilot.tools.web import http_client

CONNECT_TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of one message; tool results are truncated far below it
SESSION_LOST_STATUS = 404  # the protocol's answer to a request with an unknown session
CHILD_PROCESS_SCRIPT = Path(__file__).with_name("child_process.py")
CHILD_PATH = "/usr/local/bin:/usr/bin:/bin"
HOME_PREFIX = "pilothouse-mcp-"

IncomingStream = ReadStream[SessionMessage | Exception]
ServerStreams = tuple[IncomingStream, WriteStream[SessionMessage]]


def make_http_client() -> http_client.PublicHttpClient:
    """Make a client with the rules of `web_fetch` for ports and addresses of users' servers."""
    return http_client.PublicHttpClient(ports=settings.WEB_FETCH_PORTS)


@asynccontextmanager
async def open_streams(
    server: McpServerConfig, *, gone: Callable[[], None], forgotten: Callable[[], None]
) -> AsyncIterator[ServerStreams]:
    """Open the server's two streams. `gone` is called when it hangs up, `forgotten` when it lost our session."""
    inner = _open_http(server, forgotten) if server.transport == "http" else _open_stdio(server)
    async with inner as (read, write):
        yield _WatchedStream(read, gone), write


class _WatchedStream:
    """A stream that reports its end, so that a server that left while idle is known before the next call."""

    def __init__(self, inner: IncomingStream, gone: Callable[[], None]) -> None:
        self._inner = inner
        self._gone = gone

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._gone()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, problem, trace)


# --- Child process -----------------------------------------------------------------------------------


@asynccontextmanager
async def _open_stdio(server: McpServerConfig) -> AsyncIterator[ServerStreams]:
    """Start a listed command in an empty home, with nothing of our environment but the server's secrets."""
    if problem := mcp.find_command_problem(server.command):
        raise ToolError("command_not_allowed", problem)
    account = privileges.get_unprivileged_account(settings.SANDBOX_UID)
    environment = {**server.secrets, "PATH": CHILD_PATH, "LANG": "C.UTF-8"}
    async with _child_home(account) as home:
        environment["HOME"] = str(home)
        unset = [f"--unset={name}" for name in DEFAULT_INHERITED_ENV_VARS if name not in environment]
        words = [*privileges.build_setpriv_command(account), "env", *unset, *server.command]
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-I", "-S", str(CHILD_PROCESS_SCRIPT), str(os.getpid()), *words],
            env=environment,  # the SDK adds variables of ours, which `env` unsets again
            cwd=home,
            encoding_error_handler="replace",
        )
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: ASYNC230 - it never blocks
            async with stdio_client(parameters, errlog=nowhere) as streams:
                yield streams


@asynccontextmanager
async def _child_home(account: privileges.UnixAccount | None) -> AsyncIterator[Path]:
    await asyncio.to_thread(_remove_abandoned_homes)
    place = Path(tempfile.mkdtemp(prefix=f"{HOME_PREFIX}{os.getpid()}-"))
    try:
        yield await asyncio.to_thread(_make_home, place, account)
    finally:
        await asyncio.shield(asyncio.to_thread(workspace_sync.remove_folder, place))


def _make_home(place: Path, account: privileges.UnixAccount | None) -> Path:
    """Make an empty home inside a folder of ours, so that nobody else can replace it."""
    place.chmod(0o711)
    home = place / "home"
    home.mkdir(0o700)
    if account is not None:
        os.chown(home, account.uid, account.gid)
    return home


def _remove_abandoned_homes() -> None:
    for place in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*-*"):
        worker = place.name.removeprefix(HOME_PREFIX).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another worker was quicker
            status = place.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and worker.isdigit() and not Path(f"/proc/{worker}").exists():
                workspace_sync.remove_folder(place)


# --- HTTP --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_http(server: McpServerConfig, forgotten: Callable[[], None]) -> AsyncIterator[ServerStreams]:
    plain = httpx2.AsyncHTTPTransport(trust_env=False)
    transport = _BoundedTransport(
        plain if server.owner_id is None else _PublicTransport(plain, make_http_client(), server.owner_id),
        forgotten,
    )
    client = httpx2.AsyncClient(
        transport=transport,
        headers={"User-Agent": "Pilothouse/1", **server.secrets, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_TIMEOUT_SECONDS, read=MAX_TOOL_WAIT_SECONDS + 10.0),
        max_redirects=http_client.MAX_REDIRECTS,
        trust_env=False,
    )
    opened = streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
    async with client, opened as streams:
        yield streams


class _PublicTransport(httpx2.AsyncBaseTransport):
    """Send every request, redirects included, to a checked address under the requested host name."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, client: http_client.PublicHttpClient, owner_id: int
    ) -> None:
        self._inner = inner
        self._client = client
        self._owner = f"user:{owner_id}"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url_safety.count_lookups_for(self._owner)
        found = await self._client.resolve_addresses(str(request.url))
        for address in found[:-1]:
            try:
                return await self._inner.handle_async_request(_redirect_to_address(request, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing was sent yet; the next address may answer
        return await self._inner.handle_async_request(_redirect_to_address(request, found[-1]))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _redirect_to_address(request: httpx2.Request, address: str) -> httpx2.Request:
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,  # includes Host
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Limit answers to the size of a message and refuse compressed ones, which could be bombs."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, forgotten: Callable[[], None]) -> None:
        self._inner = inner
        self._forgotten = forgotten

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.status_code == SESSION_LOST_STATUS and "Mcp-Session-Id" in request.headers:
            self._forgotten()
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("a response in a compression that was not requested")
        if _is_event_stream(response.headers):
            return response  # the SDK limits its messages one by one
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Type", "").lower().startswith("text/event-stream")


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._inner:
            received += len(piece)
            if received > MAX_ANSWER_BYTES:
                raise httpx2.RemoteProtocolError("a response larger than any message may be")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


IDLE_TIMEOUT_SECONDS = 600.0
CLOSE_TIMEOUT_SECONDS = 5.0  # to say goodbye to the server
REDACTION_GRACE_SECONDS = (
    60.0  # secrets stay redacted while the last answers of a shared server are being stored
)
MAX_LISTED_TOOLS = 500  # a server that lists more is cut off
PROGRESS_INTERVAL_SECONDS = 1.0  # at most one progress message per second reaches people
TIMEOUT_MESSAGE = f"It did not answer within {CONNECT_TIMEOUT_SECONDS:g} s."

ToolReply = types.CallToolResult | types.InputRequiredResult
_reply_adapter: TypeAdapter[ToolReply] = TypeAdapter(ToolReply)
# Exceptions of the SDK and its transports. The SDK wraps those of its tasks in groups.
_CONNECTION_ERRORS = (
    MCPError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    OSError,
    ToolError,
    ValueError,
    RuntimeError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    ExceptionGroup,
)


class McpServerUnavailable(Exception):
    """A server that cannot be reached or does not speak MCP, with a sentence for people."""


class McpSessionLost(Exception):
    """The server no longer knows our session, so the call did nothing."""


class McpConnectionLost(Exception):
    """The connection broke during a call, so it is unknown whether the call was carried out."""


@dataclass(frozen=True, kw_only=True)
class ServerListing:
    """The tools and instructions of a server."""

    tools: tuple[DescribedTool, ...]
    instructions: str


class McpConnection:
    def __init__(self, server: McpServerConfig) -> None:
        self.server = server
        self.is_closed = False
        self._client: Client | None = None
        self._scope: anyio.CancelScope | None = None
        self._closing = anyio.Event()
        self._used_at = time.monotonic()
        self._calls = 0
        self._session_lost = False
        self._changed = False  # the server announced a new list of tools
        self._listed: asyncio.Future[ServerListing] = asyncio.get_running_loop().create_future()
        # An empty context, because other turns than the first will use the connection.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context(), name="mcp connection")

    async def get_listing(self) -> ServerListing:
        """Wait for the list of tools, no longer than CONNECT_TIMEOUT_SECONDS."""
        await asyncio.wait({self._listed}, timeout=CONNECT_TIMEOUT_SECONDS)
        if not self._listed.done():
            self.close()
            raise McpServerUnavailable(TIMEOUT_MESSAGE)
        if self._changed:
            await self._refresh_listing()
        return self._listed.result()

    async def _refresh_listing(self) -> None:
        """Fetch the tools again for turns that begin from now on; a running turn keeps its tools."""
        assert self._client is not None  # it was listed before
        self._changed = False  # before the request: a change meanwhile is fetched the next time
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                listing = await self._fetch_listing(self._client)
        except _CONNECTION_ERRORS as problem:
            self.close()
            raise McpServerUnavailable(describe_error(problem, self.server)) from problem
        self._listed = asyncio.get_running_loop().create_future()
        self._listed.set_result(listing)

    async def _fetch_listing(self, client: Client) -> ServerListing:
        redact = choose_redaction(self.server)
        described = await asyncio.to_thread(
            tool_listing.describe_tools, await _list_all_tools(client), redact
        )
        return ServerListing(tools=described, instructions=redact(client.instructions or ""))

    async def _handle_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed = True

    async def call_tool(
        self, tool: str, arguments: Mapping[str, JSON], invocation: ToolInvocation
    ) -> ToolReply:
        """Call a tool without the SDK's validation of the result, which a hostile schema could make endless."""
        assert self._client is not None  # it was listed
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        )
        self._calls += 1
        try:
            return await self._client.session.send_request(
                request,
                _reply_adapter,
                request_read_timeout_seconds=MAX_TOOL_WAIT_SECONDS,
                progress_callback=_ProgressReporter(invocation),
            )
        except MCPError as problem:
            if problem.code == CONNECTION_CLOSED:
                raise McpConnectionLost from problem
            if self._session_lost:
                raise McpSessionLost from problem
            raise
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()

    def close(self) -> None:
        self.is_closed = True
        self._closing.set()

    async def close_and_wait(self) -> None:
        """Close gracefully within the close timeout; a connection that is still being opened is cancelled."""
        self.close()
        if self._client is None and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait({self._task})

    def on_end(self, callback: Callable[[McpConnection], None]) -> None:
        self._task.add_done_callback(lambda task: callback(self))

    def _mark_session_lost(self) -> None:
        self._session_lost = True

    async def _run(self) -> None:
        shared = self.server.secret_values() if self.server.owner_id is None else []
        redaction.register_temporary_secrets(shared)
        redaction.set_user_secrets(self.server.own_secret_values())
        try:
            await self._run_until_closed()
        except _CONNECTION_ERRORS as problem:
            self._fail_waiters(describe_error(problem, self.server))
        finally:
            self.is_closed = True
            self._fail_waiters("It hung up.")
            asyncio.get_running_loop().call_later(
                REDACTION_GRACE_SECONDS, redaction.release_temporary_secrets, shared
            )

    async def _run_until_closed(self) -> None:
        """Run inside one cancel scope, so that everything is closed in the right order."""
        with anyio.CancelScope(deadline=anyio.current_time() + CONNECT_TIMEOUT_SECONDS) as scope:
            self._scope = scope
            client = Client(
                open_streams(self.server, gone=self.close, forgotten=self._mark_session_lost),
                client_info=Implementation(name="Pilothouse", version="1"),
                cache=None,
                message_handler=self._handle_message,
                # Without callbacks for sampling, elicitation and roots the SDK declines them.
            )
            async with client:
                listing = await self._fetch_listing(client)
                self._client = client
                scope.deadline = math.inf
                if not self._listed.done():
                    self._listed.set_result(listing)
                await self._wait_until_idle()
                scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_SECONDS
        if scope.cancelled_caught:
            self._fail_waiters(TIMEOUT_MESSAGE)

    async def _wait_until_idle(self) -> None:
        while not self._closing.is_set():
            idle = time.monotonic() - self._used_at
            if not self._calls and idle >= IDLE_TIMEOUT_SECONDS:
                self.close()
                return
            with anyio.move_on_after(
                IDLE_TIMEOUT_SECONDS - idle if not self._calls else IDLE_TIMEOUT_SECONDS
            ):
                await self._closing.wait()

    def _fail_waiters(self, reason: str) -> None:
        if not self._listed.done():
            self._listed.set_exception(McpServerUnavailable(reason))
            self._listed.exception()  # marked as seen, as nobody may be waiting any more


async def _list_all_tools(client: Client) -> list[types.Tool]:
    found: list[types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) >= MAX_LISTED_TOOLS:
            return found[:MAX_LISTED_TOOLS]


class _ProgressReporter:
    """Pass on progress messages of a server, at most one per interval."""

    def __init__(self, invocation: ToolInvocation) -> None:
        self._invocation = invocation
        self._reported_at = -math.inf

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_INTERVAL_SECONDS:
            self._reported_at = now
            share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
            self._invocation.report_progress(tool_listing.escape_server_text(message or share))


# --- Error messages ----------------------------------------------------------------------------------


def choose_redaction(server: McpServerConfig) -> Callable[[str], str]:
    """Return the redaction for a server's text: a user's server never got a secret of the installation."""
    return redaction.redact if server.owner_id is None else redaction.redact_user_text


def describe_error(problem: BaseException, server: McpServerConfig) -> str:
    """Describe a problem in one sentence for people; messages of libraries may name internal addresses and secrets."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    match problem:
        case ToolError():
            return problem.message
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            return "It hung up."
        case MCPError():
            return f"It refused: {choose_redaction(server)(tool_listing.escape_server_text(problem.message))[:300]}"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return "It could not be reached."
        case httpx2.TimeoutException() | TimeoutError():
            return "It did not answer in time."
        case httpx2.HTTPError() | httpx2.InvalidURL():
            return "Its answer was cut off or could not be read."
        case ValidationError():
            return "Its answer does not follow the MCP protocol."
        case OSError():
            return "It could not be started."
        case _:
            return f"It does not work as an MCP server ({type(problem).__name__})."
