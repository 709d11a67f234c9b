"""Reading a conversation, shaping it, and being told of it (W2.3, W2.6, W2.8, W2.10)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.flows.conftest import Visitor, send

pytestmark = pytest.mark.browser

AWAY = """
window.told = [];
window.Notification = class {
  static permission = "default";
  static async requestPermission() { return (this.permission = "granted"); }
  constructor(title, options) { window.told.push([title, options.body]); }
  close() {}
};
Object.defineProperty(document, "hidden", { get: () => window.away === true });
"""


def shell_chat(email: str) -> str:
    from django.contrib.auth.models import User

    from tests import make

    session = make.session(User.objects.get(email=email), title="Shell")
    turn = make.turn(session, "succeeded")
    said = {"exit_code": 1, "stderr": "denied", "stdout": "a.txt", "timed_out": False, "message": ""}
    fields = {"tool": "bash_exec", "success": False, "duration_ms": 5, "truncated": False}
    make.message(session, content="look", turn=turn)
    call = {"tool": "bash_exec", "arguments": {"command": "ls /root"}}
    make.message(session, "tool_call", call_id="c", data=call, turn=turn)
    make.message(session, "tool_result", call_id="c", data=fields | {"preview": json.dumps(said)}, turn=turn)
    make.message(session, "assistant", content="One file.", turn=turn)
    return str(session.pk)


def test_a_command_shows_what_ran_how_it_ended_and_what_it_said(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.3: command, exit status, stdout, stderr"""
    ada.log_in()
    page = ada.tab(f"/chat/{stored(lambda: shell_chat(ada.email))}/")
    page.locator(".row.tool summary").click()
    expect(page.locator(".shell-command")).to_have_text("ls /root")
    expect(page.locator(".shell-status")).to_have_text("exit 1")
    expect(page.locator(".shell pre")).to_have_text(["ls /root", "a.txt", "denied"])
    expect(page.locator(".tool-body dl")).to_be_hidden()


def test_a_chat_has_its_own_instructions_and_tools(ada: Visitor) -> None:
    """W2.8, A30.1: chosen before the first message, kept, and obeyed"""
    page = ada.log_in()
    page.get_by_role("button", name="Instructions and tools of this chat").click()
    page.get_by_label("Instructions", exact=True).fill("Answer in one word.")
    page.get_by_role("checkbox", name=re.compile("^Current time")).uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#shape[data-shaped]")).to_have_count(1)
    send(page, "use a tool")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    expect(page.locator(".row.tool")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Instructions and tools of this chat").click()
    expect(page.get_by_label("Instructions", exact=True)).to_have_value("Answer in one word.")
    expect(page.get_by_role("checkbox", name=re.compile("^Current time"))).not_to_be_checked()


def test_whoever_is_away_is_told_once_if_they_asked_for_it(ada: Visitor) -> None:
    """W2.10: the tab's title always, a notification by choice"""
    ada.context.add_init_script(AWAY)
    page = ada.log_in()
    page.get_by_label("Message", exact=True).fill("Hello")
    page.evaluate("window.away = true")  # before it is sent: no answer is quicker than that
    page.keyboard.press("Enter")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    assert page.evaluate("window.told") == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page).not_to_have_title(re.compile(r"^\("))
    page.locator(".me summary").click()
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notify me")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Message", exact=True).fill("Ask me something before you go on.")
    page.evaluate("window.away = true")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    assert [body for _, body in page.evaluate("window.told")] == ["It needs you."]


def test_whoever_left_a_page_that_was_loaded_meanwhile_is_told_of_its_ending(ada: Visitor) -> None:
    """W2.10: the page saw no beginning"""
    ada.context.add_init_script(AWAY)
    page = ada.log_in()
    send(page, "Ask me something before you go on.")
    expect(page.locator(".question")).to_be_visible()
    page.reload()
    ada.is_connected(page)
    page.evaluate("window.away = true")
    other = ada.tab(urlsplit(page.url).path)
    other.locator(".question").get_by_role("button", name="Recovery").click()
    expect(page).to_have_title(re.compile(r"^\(1\) "))
