"""The pages of tools and MCP servers in a real browser (A28, A32.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser

NOBODY = "https://203.0.114.1/mcp"  # a public number behind which nobody answers


def test_a_server_is_added_tried_and_removed(ada: Visitor) -> None:
    """A28.1, A28.3, W3: what takes long says so, what is wrong is said where it is managed, and no secret comes back"""
    ada.log_in()
    page = ada.tab("/settings/tools/")
    expect(page.get_by_role("listitem").filter(has_text="write_file").first).to_contain_text("available")
    page.locator("#main").get_by_role("link", name="MCP servers").click()
    page.get_by_label("Name").fill("files")
    page.get_by_label("URL").fill(NOBODY)
    page.get_by_label("Headers, one per line").fill("Authorization: Bearer canary-7f3e9b1c5d")
    page.get_by_role("button", name="Add server").click()
    server = page.get_by_role("region", name="files")
    expect(server).to_contain_text("Not connected yet")
    expect(server.get_by_text("Authorization", exact=True)).to_be_visible()
    assert "canary" not in page.content()
    server.locator("form[data-busy]").evaluate(
        "form => form.addEventListener('submit', (event) => sessionStorage.setItem('said', event.submitter.textContent))"
    )
    server.get_by_role("button", name="Test").click()
    expect(server).to_contain_text("Last error:", timeout=40_000)
    assert page.evaluate("sessionStorage.getItem('said')") == "Testing…"
    page.once("dialog", lambda dialog: dialog.accept())
    server.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("You haven't added any servers yet.")).to_be_visible()


def test_staff_test_a_server_from_the_list_of_the_admin(
    ada: Visitor, stored: Callable[[Callable[[], object]], object]
) -> None:
    """The browser sends the list's form on to the page that awaits the server"""
    stored(lambda: _prepare_staff(ada.email))
    ada.log_in()
    page = ada.tab("/admin/copilot/mcpserver/")
    page.get_by_role("row").filter(has_text="everybodys-files").get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option(label="Test the connection")
    page.get_by_role("button", name="Go", exact=False).first.click()
    expect(page.get_by_text("MCP server everybodys-files: It could not be reached.")).to_be_visible()
    stored(_remove_servers)


def _prepare_staff(email: str) -> None:
    from django.contrib.auth.models import User

    from copilot.tools.mcp import services as mcp

    User.objects.filter(email=email).update(is_staff=True, is_superuser=True)
    mcp.create_server(None, mcp.McpServerDraft(name="everybodys-files", url="http://127.0.0.1:1/mcp"))


def _remove_servers() -> None:
    from copilot.models import McpServer

    McpServer.objects.filter(owner=None).delete()
