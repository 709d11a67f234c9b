"""Single connections to MCP servers: which addresses they go to, how long they last, what outlives them (A28)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx2
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from config.core.redaction import redact
from config.core.url_safety import NOT_PUBLIC_MESSAGE
from config.dev.servers import find_free_port
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.tools.base import ToolInvocation
from copilot.tools.mcp import server_connection
from copilot.tools.mcp.server_connection import McpConnection, McpServerUnavailable
from copilot.tools.mcp.services import McpServerConfig
from copilot.tools.web import http_client
from tests.support import mcp_servers
from tests.support.local_web_server import FakeResolver, Handler, serve_locally
from tests.support.turn_engine import until

pytestmark = pytest.mark.usefixtures("listed_commands")
INVOCATION = ToolInvocation(
    context=TurnContext(
        user_id=1,
        session_id=str(UUID(int=1)),
        turn_id=str(UUID(int=2)),
        fence=1,
        origin="web",
        permissions=UNRESTRICTED,
        channel=CHANNELS_BY_ORIGIN["web"],
    ),
    call_id="1",
    emit=lambda event: None,
)


@pytest.fixture(name="opened")
async def opened_fixture() -> AsyncIterator[list[McpConnection]]:
    opened: list[McpConnection] = []
    yield opened
    for connection in opened:
        await connection.close_and_wait()


def users(url: str, **fields: object) -> McpServerConfig:
    return McpServerConfig(id=uuid4(), owner_id=1, name="mine", transport="http", url=url, **fields)


def child(label: str = "test", manner: str = "plain", **fields: object) -> McpServerConfig:
    command = mcp_servers.words("stdio", label, manner)
    return McpServerConfig(
        id=uuid4(), owner_id=None, name="files", transport="stdio", command=command, **fields
    )


async def refusal(opened: list[McpConnection], server: McpServerConfig) -> str:
    opened.append(McpConnection(server))
    with pytest.raises(McpServerUnavailable) as caught:
        await opened[-1].get_listing()
    return str(caught.value)


async def said(connection: McpConnection, tool: str) -> str:
    reply = await connection.call_tool(tool, {}, INVOCATION)
    return str(reply.content[0].text)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/mcp", "http://10.0.0.1/mcp", "http://localhost/mcp", "http://[::1]/mcp"]
)
async def test_a_users_server_at_a_private_address_is_refused_when_connecting(
    opened: list[McpConnection], url: str
) -> None:
    """A28.c2"""
    assert await refusal(opened, users(url)) == NOT_PUBLIC_MESSAGE


async def test_a_name_is_checked_at_every_request_and_met_at_the_checked_address(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A28.1, A24.1: the request goes to the address under the name, and a name that moves inside is refused"""
    port = mcp_servers.standing()
    names = FakeResolver({"mcp.example": [["127.0.0.1"]]})
    mcp_servers.may_reach(monkeypatch, port, resolver=names)
    opened.append(McpConnection(users(f"http://mcp.example:{port}/mcp")))
    await opened[0].get_listing()
    assert f"'host': 'mcp.example:{port}'" in await said(opened[0], "headers")
    names._names["mcp.example"] = [["127.0.0.1"], ["10.0.0.1"]]
    assert await refusal(opened, users(f"http://mcp.example:{port}/mcp")) == NOT_PUBLIC_MESSAGE


@pytest.mark.parametrize(("name", "met"), [("mcp.example", True), ("other.example", False)])
async def test_a_certificate_must_be_that_of_the_name_not_of_the_address(
    tmp_path: Path, name: str, met: bool
) -> None:
    """A24.1: with the right host name, though the connection is made to a number"""
    certificate = _certificate(tmp_path, "mcp.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def greet(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.host)

    runner = web.AppRunner(_app(greet))
    await runner.setup()
    port = find_free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    trusting = httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(cafile=str(certificate)))
    way_out = http_client.PublicHttpClient(
        ports=[port], unchecked=["127.0.0.1"], resolver=FakeResolver({name: [["127.0.0.1"]]})
    )
    async with httpx2.AsyncClient(
        transport=server_connection._PublicTransport(trusting, way_out, 1)
    ) as client:
        with (
            contextlib.nullcontext() if met else pytest.raises(httpx2.ConnectError, match="Hostname mismatch")
        ):
            answer = await client.post(f"https://{name}:{port}/mcp")
            assert answer.text == f"{name}:{port}"
    await runner.cleanup()


def _app(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


def _certificate(folder: Path, name: str) -> Path:
    """A self-signed one, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(secret + signed.public_bytes(pem))
    return path


@pytest.mark.parametrize(
    "place", ["http://10.0.0.1/mcp", "http://elsewhere.example/mcp", "http://127.0.0.1:1/mcp"]
)
async def test_a_redirect_to_another_place_is_not_followed(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A28.1"""

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(place)

    async with serve_locally(redirect) as port:
        mcp_servers.may_reach(monkeypatch, port)
        assert "not followed" in await refusal(opened, users(mcp_servers.url(port)))


async def test_a_redirect_within_the_server_is_checked_again(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A28.1: the same name, and another address by now"""

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    names = FakeResolver({"mcp.example": [["127.0.0.1"], ["10.0.0.1"]]})
    async with serve_locally(redirect) as port:
        mcp_servers.may_reach(monkeypatch, port, resolver=names)
        assert await refusal(opened, users(f"http://mcp.example:{port}/mcp")) == NOT_PUBLIC_MESSAGE
    assert len(names.asked) == 2


async def test_an_answer_without_end_is_cut_off(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A28.5"""

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**20)

    async with serve_locally(flood) as port:
        mcp_servers.may_reach(monkeypatch, port)
        assert (
            await refusal(opened, users(mcp_servers.url(port)))
            == "Its answer was cut off or could not be read."
        )


async def test_a_page_that_is_no_server_is_said_to_be_none(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>Hello</h1>", content_type="text/html")

    async with serve_locally(page) as port:
        mcp_servers.may_reach(monkeypatch, port)
        assert (await refusal(opened, users(mcp_servers.url(port)))).startswith(
            "It refused: Unexpected content type"
        )


async def test_a_program_that_cannot_be_started_is_absent(opened: list[McpConnection]) -> None:
    """A28.3"""
    mcp_servers.ALLOWED.append(("/no/such/program",))
    server = McpServerConfig(
        id=uuid4(), owner_id=None, name="x", transport="stdio", command=("/no/such/program",)
    )
    assert await refusal(opened, server) == "It hung up."


async def test_a_connection_that_nobody_uses_is_closed_and_its_child_with_it(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A28.2"""
    monkeypatch.setattr(server_connection, "IDLE_TIMEOUT_SECONDS", 0.05)
    opened.append(McpConnection(child()))
    await opened[0].get_listing()
    await opened[0]._task
    assert opened[0].is_closed


async def test_a_secret_of_everybodys_server_is_masked_for_as_long_as_it_is_in_use(
    opened: list[McpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9.10, A28.1"""
    monkeypatch.setattr(server_connection, "REDACTION_GRACE_SECONDS", 0.0)
    secret = "passphrase-5d1c9e"
    opened.append(McpConnection(child(secrets={"KEY": secret})))
    await opened[0].get_listing()
    assert redact(f"it is {secret}") == "it is [REDACTED]"
    await opened[0].close_and_wait()
    await asyncio.sleep(0)
    assert redact(f"it is {secret}") == f"it is {secret}"


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_its_worker(death: signal.Signals) -> None:
    """A28.c2: nor what the child started"""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.mcp_worker_program",
            *mcp_servers.words("stdio", manner="stubborn"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "LOG_LEVEL": "ERROR",
            "MCP_STDIO_COMMANDS": shlex.join(mcp_servers.words("stdio", manner="stubborn")),
        },
    ) as worker:
        assert worker.stdout is not None
        try:
            pids = [int(worker.stdout.readline()) for _ in range(2)]
            assert all(mcp_servers.alive(pid) for pid in pids)
            worker.send_signal(death)
            worker.wait()
        finally:
            worker.kill()
    until(lambda: not any(mcp_servers.alive(pid) for pid in pids))
