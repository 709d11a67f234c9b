"""Stdio MCP servers: only listed commands start, with an environment and an account of their own."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from mcp.types import CallToolResult, TextContent

from config import env
from config.core.errors import InvalidRequest
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import TurnContext
from copilot.models import McpServer
from copilot.tools.base import ToolInvocation
from copilot.tools.mcp import server_connection
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp.server_connection import McpConnection, McpServerUnavailable
from copilot.tools.mcp.services import McpServerConfig, McpServerDraft
from tests.support import factories, timeouts
from tests.support.sandbox import list_processes

pytestmark = pytest.mark.attack
timeouts.with_those_of(server_connection)  # a child begins by starting Python
PYTHON = "/usr/bin/python3"
SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    about = {"environment": dict(os.environ), "uid": os.getuid(), "groups": os.getgroups(), "folder": os.getcwd(),
             "descriptors": sorted(os.listdir("/proc/self/fd")), "arguments": sys.argv[1:]}
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "x", "version": "1"}},
        "tools/list": {"tools": [{"name": "about", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": json.dumps(about)}]},
    }
    answer = {"result": results[asked["method"]]} if asked["method"] in results else {
        "error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.fixture
def command(settings: Any) -> Iterator[tuple[str, ...]]:
    if not os.path.exists(PYTHON):
        pytest.skip("needs the system's Python")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        program = Path(place) / "server.py"
        program.write_text(SERVER)
        found = (PYTHON, "-S", str(program), "--root", "/srv")
        settings.MCP_STDIO_COMMANDS = [found]
        yield found


def child(command: tuple[str, ...], **secrets: str) -> McpServerConfig:
    return McpServerConfig(
        id=uuid4(), owner_id=None, name="files", transport="stdio", command=command, secrets=secrets
    )


async def about(server: McpServerConfig) -> dict[str, Any]:
    """What a server says of itself; the connection is closed afterwards."""
    connection = McpConnection(server)
    try:
        await connection.get_listing()
        context = TurnContext(
            user_id=1,
            session_id=str(uuid4()),
            turn_id=str(uuid4()),
            fence=1,
            origin="web",
            permissions=UNRESTRICTED,
            channel=None,
        )
        reply = await connection.call_tool(
            "about", {}, ToolInvocation(context=context, call_id="1", emit=lambda event: None)
        )
        assert isinstance(reply, CallToolResult)
        assert isinstance(reply.content[0], TextContent)
        return dict(json.loads(reply.content[0].text))
    finally:
        await connection.close_and_wait()


async def test_a_child_has_nothing_of_our_environment(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what the SDK takes along: our home, our user and our path"""
    monkeypatch.setenv("CANARY_OF_THE_SERVER", "canary")
    said = await about(child(command, TOKEN="its-own-token"))
    environment = said["environment"]
    environment.pop("LC_CTYPE", None)  # Python sets it for itself
    home = environment.pop("HOME")
    assert environment == {"PATH": server_connection.CHILD_PATH, "LANG": "C.UTF-8", "TOKEN": "its-own-token"}
    assert said["folder"] == home != os.environ.get("HOME")
    assert said["descriptors"] == ["0", "1", "2", "3"]
    assert said["arguments"] == ["--root", "/srv"]


async def test_its_home_goes_with_it_and_with_a_worker_that_was_killed(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", place)
        gone, alive = (
            Path(place) / f"{server_connection.HOME_PREFIX}{pid}-x" for pid in (4_194_999, os.getpid())
        )
        for left in (gone, alive):
            (left / "home").mkdir(parents=True)
        link = Path(place) / f"{server_connection.HOME_PREFIX}4194998-x"
        link.symlink_to("/usr")
        said = await about(child(command))
        assert said["environment"]["HOME"].startswith(place)
        assert sorted(os.listdir(place)) == sorted([alive.name, link.name])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
async def test_root_starts_it_as_another_account(command: tuple[str, ...], settings: Any) -> None:
    nobody = pwd.getpwnam("nobody")
    said = await about(child(command))
    assert (said["uid"], said["groups"]) == (nobody.pw_uid, [])
    settings.SANDBOX_UID = 43210
    assert (await about(child(command)))["uid"] == 43210


async def test_what_is_not_listed_is_not_started(
    command: tuple[str, ...], settings: Any, tmp_path: Path
) -> None:
    """By its whole command: other arguments make another program of an interpreter"""
    touched = tmp_path / "touched"
    listed = [(PYTHON, "-S", "/srv/server.py"), ("/bin/sh",)]
    for tried in (
        ("/bin/sh", "-c", f"touch {touched}"),
        ("sh",),
        (PYTHON, "-S", "/srv/server.py", "-c", "1"),
        (PYTHON,),
        (f"{PYTHON} -S /srv/server.py",),
        command,
    ):
        settings.MCP_STDIO_COMMANDS = listed
        with pytest.raises(McpServerUnavailable, match="Only commands listed in MCP_STDIO_COMMANDS"):
            await about(child(tried))
    settings.MCP_STDIO_COMMANDS = []
    with pytest.raises(McpServerUnavailable, match="MCP_STDIO_COMMANDS"):
        await about(child(command))
    assert not touched.exists()


def test_nothing_that_a_child_started_outlives_it() -> None:
    """Though it left its process group, or its parent ended before it"""
    mark = f"600.{uuid4().int % 10**9}"
    command = (
        f"(setsid sleep {mark} &); setsid setsid sleep {mark} & (trap '' TERM HUP; sleep {mark} &); sleep 0.2"
    )
    words = [
        sys.executable,
        "-I",
        "-S",
        str(server_connection.CHILD_PROCESS_SCRIPT),
        str(os.getpid()),
        "/bin/sh",
        "-c",
        command,
    ]
    with subprocess.Popen(words, start_new_session=True) as leash:
        leash.wait(60)
    assert not list_processes(mark)


@pytest.mark.django_db
def test_an_administrator_learns_of_it_when_saving(settings: Any) -> None:
    draft = McpServerDraft(name="files", transport="stdio", command=("/bin/files", "--root"))
    with pytest.raises(InvalidRequest, match="MCP_STDIO_COMMANDS") as refused:
        mcp.create_server(None, draft)
    assert refused.value.code == "command_not_allowed"
    settings.MCP_STDIO_COMMANDS = [("/bin/files", "--root")]
    assert mcp.create_server(None, draft).command == ["/bin/files", "--root"]


@pytest.mark.django_db
def test_a_server_from_before_is_absent_with_the_reason_and_can_be_switched_off(settings: Any) -> None:
    row = McpServer.objects.create(name="old", transport="stdio", command=["/bin/old"])
    [server] = mcp.list_usable_servers(factories.ada().pk, UNRESTRICTED)
    assert "MCP_STDIO_COMMANDS" in server.absent
    off = mcp.draft_from_server(row)
    assert not mcp.update_server(None, row.pk, McpServerDraft(**{**vars(off), "enabled": False})).enabled


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "ld_preload", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "PATH", "HOME", "GIT_SSH"]
)
def test_no_variable_makes_a_listed_program_another(settings: Any, name: str) -> None:
    settings.MCP_STDIO_COMMANDS = [("/bin/files",)]
    with pytest.raises(InvalidRequest, match="cannot be set"):
        mcp.create_server(
            None,
            McpServerDraft(name="x", transport="stdio", command=("/bin/files",), secrets={name: "/tmp/x"}),
        )


@pytest.mark.parametrize(
    ("value", "commands"),
    [
        ("", []),
        (" ; \n", []),
        ("/bin/a", [("/bin/a",)]),
        ("/bin/a --b 'c d'; /bin/e\n/bin/f", [("/bin/a", "--b", "c d"), ("/bin/e",), ("/bin/f",)]),
    ],
)
def test_commands_are_written_as_for_a_shell(
    monkeypatch: pytest.MonkeyPatch, value: str, commands: list[tuple[str, ...]]
) -> None:
    monkeypatch.setenv("MCP_STDIO_COMMANDS", value)
    assert env.read_variable("MCP_STDIO_COMMANDS", env.commands, []) == commands


@pytest.mark.parametrize(("value", "said"), [("npx -y x", "absolute path"), ("/bin/a 'b", "quotes")])
def test_a_bad_command_stops_the_start(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    monkeypatch.setenv("MCP_STDIO_COMMANDS", value)
    with pytest.raises(ImproperlyConfigured, match=f"MCP_STDIO_COMMANDS .*{said}"):
        env.read_variable("MCP_STDIO_COMMANDS", env.commands, [])
