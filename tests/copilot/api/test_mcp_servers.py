"""MCP servers and the list of tools over REST, on pages and in the admin (A28, A32.2)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.utils import timezone

from copilot.memories import services as memories
from copilot.models import McpServer
from copilot.tools import availability, registry
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp import tool_listing
from tests.support import factories, mcp_servers, rest_clients
from tests.support.rest_clients import V1, code_of, person, program

pytestmark = pytest.mark.django_db(transaction=True)
PUBLIC = "https://93.184.216.34/mcp"
SECRET = "Bearer canary-7f3e9b1c5d"
SERVERS = f"{V1}/mcp-servers"


def listed(*names: str, left_out: str = "", read_only: bool = False) -> list[mcp.ListedTool]:
    return [
        mcp.ListedTool(name=name, description=name, parameters={}, read_only=read_only, left_out=left_out)
        for name in names
    ]


def added(client: Client, **fields: object) -> dict[str, object]:
    body = {"name": "mine", "url": PUBLIC, "secrets": {"Authorization": SECRET}} | fields
    response = client.post(SERVERS, body, content_type=rest_clients.JSON)
    assert response.status_code == 201, response.content
    return response.json()


def test_a_server_is_added_changed_and_removed_and_its_secrets_are_never_shown() -> None:
    """A28.1, A20.6"""
    client = program(factories.ada(), "read", "manage")
    made = added(client)
    assert (made["own"], made["url"], made["secret_names"]) == (True, PUBLIC, ["Authorization"])
    place = f"{SERVERS}/{made['id']}"
    changed = client.patch(place, {"enabled": False}, content_type=rest_clients.JSON)
    assert (changed.json()["enabled"], changed.json()["secret_names"]) == (False, ["Authorization"])
    answers = [changed.content, client.get(SERVERS).content]
    assert not [content for content in answers if b"canary" in content]
    assert client.delete(place).status_code == 204
    assert client.delete(place).content == rest_clients.NOT_FOUND
    assert client.get(SERVERS).json() == {"items": []}


def test_a_key_needs_the_scope_manage_to_write() -> None:
    """A20.6"""
    client = program(factories.ada())
    assert client.get(SERVERS).status_code == 200
    assert code_of(client.post(SERVERS, {}, content_type=rest_clients.JSON)) == "insufficient_scope"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": "http://10.0.0.1/mcp"}, "address_refused"),
        ({"url": "http://localhost/mcp"}, "address_refused"),
        ({"url": "nonsense"}, "invalid_url"),
        ({"name": "no spaces"}, "invalid_request"),
        ({"transport": "stdio"}, "invalid_request"),
        ({"trusted": True}, "invalid_request"),
        ({"secrets": {"Host": "elsewhere"}}, "invalid_request"),
    ],
)
def test_what_cannot_be_a_users_server_is_refused(fields: dict[str, object], code: str) -> None:
    """A28.c2"""
    body = {"name": "mine", "url": PUBLIC} | fields
    response = person(factories.ada()).post(SERVERS, body, content_type=rest_clients.JSON)
    assert response.status_code == 400
    assert code_of(response) == code


def test_everybodys_servers_are_seen_without_their_address_and_others_not_at_all() -> None:
    row = mcp.create_server(
        None, mcp.McpServerDraft(name="all", url="http://10.0.0.1/mcp", secrets={"X-Key": "abcdefgh"})
    )
    mcp.create_server(factories.bob().pk, mcp.McpServerDraft(name="bobs", url=PUBLIC))
    client = person(factories.ada())
    [shown] = client.get(SERVERS).json()["items"]
    assert (shown["name"], shown["own"], shown["url"], shown["secret_names"]) == ("all", False, None, [])
    for method in (client.delete, client.patch):
        assert method(f"{SERVERS}/{row.pk}", content_type=rest_clients.JSON).content == rest_clients.NOT_FOUND
    assert client.post(f"{SERVERS}/{row.pk}/test").content == rest_clients.NOT_FOUND


def test_a_server_is_tried_at_once_and_what_came_of_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A28.3: a trial does not wait for the next try, and ends the wait when it succeeds"""
    ada = factories.ada()
    with mcp_servers.process() as port:
        mcp_servers.may_reach(monkeypatch, port)
        row = mcp_servers.users(
            ada, "mine", mcp_servers.url(port), failures=3, retry_at=timezone.now().replace(year=9000)
        )
        tried = person(ada).post(f"{SERVERS}/{row.pk}/test").json()
    assert (tried["ok"], tried["error"]) == (True, "")
    assert {tool["name"] for tool in tried["tools"]} >= {"label", "greet"}
    row.refresh_from_db()
    assert (row.failures, row.retry_at, len(row.tools)) == (0, None, len(tried["tools"]))
    failed = person(ada).post(f"{SERVERS}/{row.pk}/test").json()
    assert (failed["ok"], failed["error"]) == (False, "It could not be reached.")
    row.refresh_from_db()
    assert row.last_error == "It could not be reached."


def tools_of(user: User) -> dict[str, dict[str, object]]:
    items = person(user).get(f"{V1}/tools").json()["items"]
    return {item["name"]: item for item in items}


def test_the_list_of_tools_says_what_is_missing_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A32.2, A32.c1"""
    ada = factories.ada()
    monkeypatch.setattr(registry, "list_unavailable_tools", lambda: {"bash_exec": "There is no sandbox."})
    memories.set_memory_enabled(ada.pk, on=False)
    tools = tools_of(ada)
    assert list(tools) == [tool.name for tool in registry.BUILTIN_TOOLS]
    assert tools["bash_exec"]["reason"] == "There is no sandbox."
    assert tools["memory_add"]["reason"] == "Memory is switched off in your settings."
    assert tools["write_file"]["available"]
    assert all(tool["description"] for tool in tools.values())


def test_tools_of_servers_are_listed_with_the_names_models_use_and_reasons() -> None:
    """A28.4, A28.6, A32.2"""
    ada = factories.ada()
    rows = {
        "fine": {"tools": [*listed("read", read_only=True), *listed("huge", left_out="Too long.")]},
        "away": {
            "tools": listed("read"),
            "last_error": "It hung up.",
            "retry_at": timezone.now().replace(year=9000),
        },
        "crowd": {"tools": listed(*(f"t{number:03}" for number in range(70)))},
        "off": {"tools": listed("read"), "enabled": False},
    }
    for name, fields in rows.items():
        mcp_servers.users(ada, name, PUBLIC, **fields)
    McpServer.objects.create(
        name="all", transport="http", url=PUBLIC, trusted=True, tools=listed("look", read_only=True)
    )
    tools = tools_of(ada)
    assert tools["mcp_fine_huge"]["reason"] == "Too long."
    assert tools["mcp_away_read"]["reason"] == "Its server isn't available: It hung up."
    assert "mcp_off_read" not in tools
    assert (tools["mcp_all_look"]["asks"], tools["mcp_fine_read"]["asks"]) == (False, True)
    offered = [name for name, tool in tools.items() if tool["server"] and tool["available"]]
    assert len(offered) == tool_listing.MAX_OFFERED_TOOLS
    assert tools["mcp_fine_read"]["reason"] == tool_listing.TOO_MANY_TOOLS_MESSAGE  # after the crowd, by name


# --- pages -------------------------------------------------------------------------------------------


def test_servers_are_managed_on_a_page_that_never_shows_a_secret() -> None:
    """A28.1"""
    client = person(factories.ada())
    form = {"name": "mine", "url": PUBLIC, "secrets": f"Authorization: {SECRET}\n\nX-Team: a:b"}
    assert client.post("/settings/mcp/", form).status_code == 302
    row = McpServer.objects.get()
    assert mcp.build_trial_config(row).secrets == {"Authorization": SECRET, "X-Team": "a:b"}
    McpServer.objects.update(tools=listed("<b>bold</b>"), last_error="It hung up.")
    page = client.get("/settings/mcp/").content.decode()
    assert "canary" not in page
    assert "<b>bold" not in page
    assert "It hung up." in page
    kept = {"name": "renamed", "url": PUBLIC, "secrets": ""}
    assert client.post(f"/settings/mcp/{row.pk}/", kept).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.enabled, mcp.list_secret_names(row)) == (
        "renamed",
        False,
        ["Authorization", "X-Team"],
    )
    client.post(f"/settings/mcp/{row.pk}/", kept | {"no_secrets": "1"})
    row.refresh_from_db()
    assert row.secrets == ""
    assert client.post(f"/settings/mcp/{row.pk}/remove/").status_code == 302
    assert not McpServer.objects.exists()


def test_a_refused_server_stays_in_the_form_but_its_secrets_do_not() -> None:
    client = person(factories.ada())
    form = {"name": "mine", "url": "http://10.0.0.1/mcp", "secrets": f"Authorization: {SECRET}"}
    response = client.post("/settings/mcp/", form)
    assert response.status_code == 400
    page = response.content.decode()
    assert "Only public addresses" in page
    assert 'value="http://10.0.0.1/mcp"' in page
    assert "canary" not in page
    bad = client.post("/settings/mcp/", form | {"url": PUBLIC, "secrets": "nonsense"})
    assert bad.status_code == 400


def test_other_users_servers_are_not_found() -> None:
    row = mcp.create_server(factories.bob().pk, mcp.McpServerDraft(name="bobs", url=PUBLIC))
    client = person(factories.ada())
    for act in ("", "test/", "remove/"):
        assert client.post(f"/settings/mcp/{row.pk}/{act}", {"name": "x", "url": PUBLIC}).status_code == 404
    assert "bobs" not in client.get("/settings/mcp/").content.decode()


def test_the_page_of_tools_shows_every_tool() -> None:
    """A32.2"""
    page = person(factories.ada()).get("/settings/tools/").content.decode()
    assert all(f"<code>{tool.name}</code>" in page for tool in registry.BUILTIN_TOOLS)
    assert availability.SUMMARIES.keys() == {tool.name for tool in registry.BUILTIN_TOOLS}
    assert "Create files for you." in page


def test_a_trial_on_the_page_says_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ada = factories.ada()
    client = person(ada)
    port = mcp_servers.standing()
    mcp_servers.may_reach(monkeypatch, port)
    row = mcp_servers.users(ada, "mine", mcp_servers.url(port))
    page = client.post(f"/settings/mcp/{row.pk}/test/", follow=True).content.decode()
    assert "Connected: 10 tools." in page
    assert "Says which server this is." in page


# --- the admin ---------------------------------------------------------------------------------------

ADD = "/admin/copilot/mcpserver/add/"
FORM = {
    "name": "files",
    "transport": "stdio",
    "url": "",
    "command_lines": "files-server\n--root\n/srv",
    "secret_lines": "TOKEN=canary-7f3e9b1c5d",
    "unasked_lines": "read",
    "enabled": "on",
}


@pytest.fixture(name="staff")
def staff_fixture(settings: Any) -> Client:
    settings.MCP_STDIO_COMMANDS = [("files-server", "--root", "/srv")]
    return person(User.objects.create_superuser("grace", "grace@example.org", "x"))


def test_an_administrator_adds_and_changes_everybodys_servers(staff: Client) -> None:
    """A28.1, A28.6"""
    assert staff.post(ADD, FORM).status_code == 302
    row = McpServer.objects.get()
    assert (row.owner_id, row.command, row.never_ask) == (None, ["files-server", "--root", "/srv"], ["read"])
    assert mcp.build_trial_config(row).secrets == {"TOKEN": "canary-7f3e9b1c5d"}
    place = f"/admin/copilot/mcpserver/{row.pk}/change/"
    page = staff.get(place).content.decode()
    assert "canary" not in page
    assert "TOKEN" in page
    assert staff.post(place, FORM | {"secret_lines": "", "trusted": "on"}).status_code == 302
    row.refresh_from_db()
    assert (row.trusted, row.version, mcp.list_secret_names(row)) == (True, 2, ["TOKEN"])
    staff.post(place, FORM | {"secret_lines": "", "forget_secrets": "on"})
    row.refresh_from_db()
    assert row.secrets == ""
    assert staff.post(f"/admin/copilot/mcpserver/{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not McpServer.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [{"command_lines": ""}, {"name": "a b"}, {"secret_lines": "nonsense"}, {"transport": "http", "url": "x"}],
)
def test_the_admin_says_what_is_wrong(staff: Client, wrong: dict[str, str]) -> None:
    response = staff.post(ADD, FORM | wrong)
    assert response.status_code == 200
    assert "errornote" in response.content.decode()
    assert not McpServer.objects.exists()


def test_the_admin_refuses_a_second_of_one_name_and_shows_no_users_server(staff: Client) -> None:
    staff.post(ADD, FORM)
    assert "already" in staff.post(ADD, FORM).content.decode()
    row = mcp.create_server(factories.ada().pk, mcp.McpServerDraft(name="adas", url=PUBLIC))
    assert "adas" not in staff.get("/admin/copilot/mcpserver/").content.decode()
    assert staff.get(f"/admin/copilot/mcpserver/{UUID(str(row.pk))}/change/").status_code == 302


def test_the_admin_tries_a_server(staff: Client) -> None:
    row = mcp_servers.everybodys("files", mcp_servers.standing())
    form = {"action": "test_connection", "_selected_action": str(row.pk)}
    page = staff.post("/admin/copilot/mcpserver/", form, follow=True).content.decode()
    assert "MCP server files: 10 tools" in page


async def test_a_trial_leaves_the_web_processs_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is awaited where the client itself runs"""
    ada = await sync_to_async(factories.ada)()
    port = mcp_servers.standing()
    mcp_servers.may_reach(monkeypatch, port)
    row = await sync_to_async(mcp_servers.users)(ada, "mine", mcp_servers.url(port))
    client = AsyncClient()
    await client.aforce_login(ada, backend="django.contrib.auth.backends.ModelBackend")
    response = await client.post(f"{SERVERS}/{row.pk}/test")
    assert response.json()["ok"]
