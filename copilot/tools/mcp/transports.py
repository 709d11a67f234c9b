"""Open streams to an MCP server: over HTTP to a checked address, or to a child process that dies with us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import httpx2
from django.conf import settings
from mcp import StdioServerParameters, stdio_client
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from config.core import privileges, url_safety
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, ToolError
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp.services import McpServerConfig
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
