"""The rows of MCP servers: who may have which, and what is remembered of them (A28)."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from django.utils import timezone

from config.core import encryption
from config.core.errors import Conflict, InvalidRequest, NotFound, RequestRefused
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import McpServer
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp.services import McpServerDraft
from tests.support import factories

pytestmark = pytest.mark.django_db
PUBLIC = "https://93.184.216.34/mcp"
SECRET = "Bearer canary-7f3e9b1c5d"


def refused(owner_id: int | None, draft: McpServerDraft) -> str:
    with pytest.raises(RequestRefused) as caught:
        mcp.create_server(owner_id, draft)
    return caught.value.code


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/mcp",
        "http://10.1.2.3/mcp",
        "http://169.254.169.254/latest",
        "http://[::1]/mcp",
        "http://[::ffff:10.0.0.1]/mcp",
        "http://localhost/mcp",
        "http://metadata/mcp",
        "https://93.184.216.34:8080/mcp",
    ],
)
def test_a_users_server_at_a_private_address_is_refused_when_saved(url: str) -> None:
    """A28.c2"""
    assert refused(factories.ada().pk, McpServerDraft(name="mine", url=url)) == "address_refused"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("host", "code"),
    [
        *((host, "address_refused") for host in ("127.1", "2130706433", "0x7f.0.0.1", "017700000001", "0")),
        *((host, "unreachable") for host in ("a" * 70 + ".example", "a..example", ".example")),
    ],
)
def test_odd_hosts_are_refused_when_saved_without_a_look_up(
    host: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", never_called)
    assert refused(factories.ada().pk, McpServerDraft(name="mine", url=f"https://{host}/")) == code


@pytest.mark.attack
def test_no_name_is_looked_up_when_a_server_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", never_called)
    ada = factories.ada().pk
    row = mcp.create_server(ada, McpServerDraft(name="mine", url="https://slow.example/"))
    assert (
        mcp.update_server(ada, row.pk, McpServerDraft(name="mine", url="https://slower.example/")).version
        == 2
    )


def never_called(*given: object, **named: object) -> NoReturn:
    raise AssertionError("a name was looked up")


def test_only_administrators_start_programs_believe_hints_and_skip_questions(settings: Any) -> None:
    """A28.1, A28.6"""
    ada = factories.ada().pk
    assert refused(ada, McpServerDraft(name="mine", transport="stdio", command=("ls",))) == "invalid_request"
    assert refused(ada, McpServerDraft(name="mine", url=PUBLIC, trusted=True)) == "invalid_request"
    assert refused(ada, McpServerDraft(name="mine", url=PUBLIC, never_ask=("x",))) == "invalid_request"
    settings.MCP_STDIO_COMMANDS = [("/bin/ls", "-l")]
    local = mcp.create_server(
        None, McpServerDraft(name="local", transport="stdio", command=("/bin/ls", "-l"))
    )
    assert local.command == ["/bin/ls", "-l"]
    assert mcp.create_server(
        None, McpServerDraft(name="inner", url="http://10.0.0.1:9000/mcp", trusted=True)
    ).trusted


@pytest.mark.parametrize(
    "draft",
    [
        McpServerDraft(name="", url=PUBLIC),
        McpServerDraft(name="a b", url=PUBLIC),
        McpServerDraft(name="x" * 41, url=PUBLIC),
        McpServerDraft(name="mine", url="nonsense"),
        McpServerDraft(name="mine", url="ftp://93.184.216.34/"),
        McpServerDraft(name="mine", url="https://user:pass@93.184.216.34/"),
        McpServerDraft(name="mine", url=PUBLIC + "x" * 2_000),
        McpServerDraft(name="mine", url=PUBLIC, secrets={"Host": "elsewhere"}),
        McpServerDraft(name="mine", url=PUBLIC, secrets={"X-Key": "a\r\nX-Other: b"}),
        McpServerDraft(name="mine", url=PUBLIC, secrets={"X Key": "abc"}),
        McpServerDraft(name="mine", url=PUBLIC, secrets={"X-Key": ""}),
    ],
)
def test_what_cannot_be_a_server_is_refused(draft: McpServerDraft) -> None:
    with pytest.raises(InvalidRequest):
        mcp.create_server(factories.ada().pk, draft)


def test_secrets_are_sealed_kept_unless_replaced_and_only_named() -> None:
    """A28.1"""
    ada = factories.ada().pk
    row = mcp.create_server(ada, McpServerDraft(name="mine", url=PUBLIC, secrets={"Authorization": SECRET}))
    assert SECRET not in row.secrets
    assert mcp.list_secret_names(row) == ["Authorization"]
    kept = mcp.update_server(ada, row.pk, McpServerDraft(name="renamed", url=PUBLIC))
    [server] = mcp.list_usable_servers(ada, UNRESTRICTED)
    assert (server.name, server.version, dict(server.secrets)) == ("renamed", 2, {"Authorization": SECRET})
    assert SECRET not in repr(server)
    assert server.secret_values() == [SECRET, "canary-7f3e9b1c5d"]
    assert (
        mcp.list_secret_names(
            mcp.update_server(ada, kept.pk, McpServerDraft(name="renamed", url=PUBLIC, secrets={}))
        )
        == []
    )


def test_a_server_sealed_under_a_lost_key_is_absent_and_says_so() -> None:
    """A28.3"""
    ada = factories.ada().pk
    row = mcp.create_server(ada, McpServerDraft(name="mine", url=PUBLIC, secrets={"Authorization": SECRET}))
    McpServer.objects.filter(pk=row.pk).update(secrets=encryption.encrypt_text("{}")[:-8] + "AAAAAAA=")
    [server] = mcp.list_usable_servers(ada, UNRESTRICTED)
    assert server.absent == mcp.SECRETS_UNREADABLE_MESSAGE
    assert mcp.list_secret_names(McpServer.objects.get()) == []


def test_one_name_is_one_server_of_an_owner() -> None:
    ada, bob = factories.ada().pk, factories.bob().pk
    for owner in (ada, bob, None):
        mcp.create_server(owner, McpServerDraft(name="mine", url=PUBLIC))
        assert refused(owner, McpServerDraft(name="mine", url=PUBLIC)) == "name_taken"
    assert [server.owner_id for server in mcp.list_usable_servers(ada, UNRESTRICTED)].count(bob) == 0


def test_a_user_has_a_bounded_number_of_servers() -> None:
    ada = factories.ada().pk
    for number in range(mcp.MAX_SERVERS):
        mcp.create_server(ada, McpServerDraft(name=f"server{number}", url=PUBLIC))
    with pytest.raises(Conflict):
        mcp.create_server(ada, McpServerDraft(name="another", url=PUBLIC))


def test_foreign_and_everybodys_servers_cannot_be_changed_or_removed() -> None:
    ada, bob = factories.ada().pk, factories.bob().pk
    rows = [
        mcp.create_server(bob, McpServerDraft(name="bobs", url=PUBLIC)),
        mcp.create_server(None, McpServerDraft(name="all", url=PUBLIC)),
    ]
    for server_id in (*(row.pk for row in rows), uuid4()):
        with pytest.raises(NotFound):
            mcp.update_server(ada, server_id, McpServerDraft(name="taken", url=PUBLIC))
        with pytest.raises(NotFound):
            mcp.delete_server(ada, server_id)
    mcp.delete_server(bob, rows[0].pk)
    assert [row.name for row in McpServer.objects.all()] == ["all"]


def test_the_wait_doubles_from_one_minute_to_fifteen_and_ends_with_an_answer() -> None:
    """A28.3: two workers that fail together count once"""
    ada = factories.ada().pk
    mcp.create_server(ada, McpServerDraft(name="mine", url=PUBLIC))
    waits = []
    for _ in range(6):
        [server] = mcp.list_usable_servers(ada, UNRESTRICTED)
        mcp.record_failure(server, "It hung up.")
        mcp.record_failure(server, "It hung up.")
        row = McpServer.objects.get()
        assert row.retry_at is not None
        waits.append(round((row.retry_at - timezone.now()) / timedelta(minutes=1)))
    assert waits == [1, 2, 4, 8, 15, 15]
    assert mcp.list_usable_servers(ada, UNRESTRICTED)[0].absent == "It hung up."
    assert mcp.build_trial_config(row).absent == ""
    mcp.record_tools(replace(mcp.build_trial_config(row), version=99), [])
    assert McpServer.objects.get().failures == 6  # another configuration's answer says nothing of this one
    mcp.record_tools(
        mcp.build_trial_config(row),
        [{"name": "read", "description": "", "parameters": {}, "read_only": True, "left_out": ""}],
    )
    row.refresh_from_db()
    assert (row.failures, row.retry_at, row.last_error, len(row.tools)) == (0, None, "", 1)


def test_a_disabled_server_is_offered_to_nobody() -> None:
    ada = factories.ada().pk
    mcp.create_server(ada, McpServerDraft(name="mine", url=PUBLIC, enabled=False))
    mcp.create_server(None, McpServerDraft(name="all", url=PUBLIC, enabled=False))
    assert mcp.list_usable_servers(ada, UNRESTRICTED) == ()
    assert [row.name for row in mcp.list_visible_servers(ada)] == ["mine"]
