"""Start real MCP servers over HTTP or stdio, and create their rows."""

from __future__ import annotations

import atexit
import contextlib
import functools
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from config.dev.servers import find_free_port, signal_on_parent_death
from copilot.models import McpServer
from copilot.tools.mcp import server_connection
from copilot.tools.mcp import services as mcp
from copilot.tools.web import http_client
from tests.support import timeouts
from tests.support.turn_engine import until

UNASKED = ("label", "greet", "headers", "big", "die", "wait", "fail", "picture", "ask", "spawn")
PROGRAM = str(Path(__file__).with_name("mcp_server_program.py"))

timeouts.with_those_of(server_connection)  # a child starts Python first
_standing = contextlib.ExitStack()
atexit.register(_standing.close)


ALLOWED: list[tuple[str, ...]] = []


def words(transport: str, label: str = "test", manner: str = "plain") -> tuple[str, ...]:
    command = (sys.executable, "-I", PROGRAM, transport, label, manner)
    ALLOWED.append(command)
    return command


def is_closed() -> bool:
    """Tell whether our Python is below a directory that only root can read, such as /root."""
    return not all(parent.stat().st_mode & 0o001 for parent in Path(sys.executable).resolve().parents)


@contextlib.contextmanager
def process(label: str = "test", manner: str = "plain", port: int | None = None) -> Iterator[int]:
    """Start a server over HTTP and return its port."""
    port = port or find_free_port()
    child = subprocess.Popen(
        words(str(port), label, manner), preexec_fn=signal_on_parent_death(signal.SIGKILL)
    )
    try:
        until(lambda: _answers(port))
        yield port
    finally:
        child.kill()
        child.wait()


@functools.cache
def standing(manner: str = "plain") -> int:
    """Return the port of a shared server that no test may change, because starting one is slow."""
    return _standing.enter_context(process(manner=manner))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def everybodys(name: str, port: int, **fields: object) -> McpServer:
    """Create a server that an administrator added; its tools need no approval by default."""
    given = {"never_ask": UNASKED} | fields
    return mcp.create_server(None, mcp.McpServerDraft(name=name, url=url(port), **given))  # type: ignore[arg-type]


def stdio(name: str, label: str = "test", manner: str = "plain", **fields: object) -> McpServer:
    given = {"never_ask": UNASKED} | fields
    command = words("stdio", label, manner)
    return mcp.create_server(None, mcp.McpServerDraft(name=name, transport="stdio", command=command, **given))  # type: ignore[arg-type]


def users(user: User, name: str, url: str, **fields: object) -> McpServer:
    """Create a user's server without checking its address."""
    return McpServer.objects.create(owner=user, name=name, transport="http", url=url, **fields)


def may_reach(monkeypatch: pytest.MonkeyPatch, *ports: int, resolver: object = None) -> None:
    """Allow users' servers on this machine, at these ports only."""
    names = {"resolver": resolver} if resolver else {}
    client = http_client.PublicHttpClient(ports=ports, unchecked=["127.0.0.1"], **names)  # type: ignore[arg-type]
    monkeypatch.setattr(server_connection, "make_http_client", lambda: client)


def alive(pid: int) -> bool:
    """Tell whether the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
