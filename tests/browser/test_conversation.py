"""Reading a conversation, shaping it, and being told of it (W2.3, W2.6, W2.8, W2.10)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import Visitor, send_message

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


SCROLLED = """async (row) => {
  const frame = () => new Promise(requestAnimationFrame);
  row.nextElementSibling.style.minHeight = "1200px"; // as if it told much
  for (const to of [row.parentElement.lastElementChild, row]) {
    to.scrollIntoView();
    await frame();
    await frame();
  }
}"""
READS: dict[str, Callable[[Locator], object]] = {
    "pointer": lambda row: row.hover(),
    "selection": lambda row: row.evaluate("row => getSelection().selectAllChildren(row)"),
    "opened": lambda row: row.locator("summary").click(),
    "scrolled": lambda row: row.evaluate(SCROLLED),
}


def shell_chat(email: str) -> str:
    from django.contrib.auth.models import User

    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="Shell")
    turn = factories.turn(session, "succeeded")
    said = {"exit_code": 1, "stderr": "denied", "stdout": "a.txt", "timed_out": False, "message": ""}
    fields = {"tool": "bash_exec", "success": False, "duration_ms": 5, "truncated": False}
    factories.message(session, content="look", turn=turn)
    call = {"tool": "bash_exec", "arguments": {"command": "ls /root"}}
    factories.message(session, "tool_call", call_id="c", data=call, turn=turn)
    factories.message(
        session, "tool_result", call_id="c", data=fields | {"preview": json.dumps(said)}, turn=turn
    )
    factories.message(session, "assistant", content="One file.", turn=turn)
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
    send_message(page, "use a tool")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    expect(page.locator(".row.tool")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Instructions and tools of this chat").click()
    expect(page.get_by_label("Instructions", exact=True)).to_have_value("Answer in one word.")
    expect(page.get_by_role("checkbox", name=re.compile("^Current time"))).not_to_be_checked()


def test_a_user_who_is_away_is_notified_once_if_they_enabled_it(ada: Visitor) -> None:
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
    page.get_by_role("button", name="Desktop notifications").click()
    expect(page.get_by_role("button", name="Desktop notifications")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Message", exact=True).fill("Ask me something before you go on.")
    page.evaluate("window.away = true")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    assert [body for _, body in page.evaluate("window.told")] == ["Waiting for you."]


def test_a_user_who_left_a_loading_page_is_notified_of_the_ending(ada: Visitor) -> None:
    """W2.10: the page saw no beginning"""
    ada.context.add_init_script(AWAY)
    page = ada.log_in()
    send_message(page, "Ask me something before you go on.")
    expect(page.locator(".question")).to_be_visible()
    page.reload()
    ada.is_connected(page)
    page.evaluate("window.away = true")
    other = ada.tab(urlsplit(page.url).path)
    other.locator(".question").get_by_role("button", name="Recovery").click()
    expect(page).to_have_title(re.compile(r"^\(1\) "))


@pytest.mark.parametrize("way", READS)
def test_steps_that_somebody_reads_stay_open_when_the_answer_is_complete(ada: Visitor, way: str) -> None:
    """W2.3: steps that the user did not open are folded"""
    page = ada.log_in()
    send_message(page, "Ask me something before you go on.")
    expect(page.locator(".question")).to_be_visible()
    other = ada.tab(urlsplit(page.url).path)
    row = page.locator(".row.thought").first
    READS[way](row)
    other.locator(".question").get_by_role("button", name="Recovery").press("Enter")
    for tab, head in ((other, "Show"), (page, "Hide")):
        expect(tab.locator("#announcer")).to_have_text("Answer finished.")
        expect(tab.get_by_role("button", name=re.compile(rf"^{head} \d steps"))).to_be_visible()
    expect(row).to_be_visible()
    expect(other.locator(".row.thought").first).to_be_hidden()


def test_steps_that_were_opened_stay_open_when_older_ones_join_them(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.2, W2.3: a page begins between calls and their results; with the older one each is one row"""

    def cut_turn() -> str:
        from django.contrib.auth.models import User

        from tests.support import factories

        session = factories.session(User.objects.get(email=ada.email), title="Cut")
        turn = factories.turn(session, "succeeded")
        factories.message(session, content="Three at once", turn=turn)
        tool = {"tool": "current_time"}
        for call in "abc":
            factories.message(session, "tool_call", call_id=call, data=tool | {"arguments": {}}, turn=turn)
        said = tool | {"success": True, "duration_ms": 5, "truncated": False}
        for call in "abc":
            factories.message(session, "tool_result", call_id=call, data=said | {"preview": call}, turn=turn)
        factories.message(session, "assistant", content="Done.", turn=turn)
        for number in range(46):
            factories.message(session, content=f"Line {number}")
        return str(session.pk)

    ada.log_in()
    page = ada.tab(f"/chat/{stored(cut_turn)}/")
    page.get_by_role("button", name="Show 3 steps").evaluate(
        "button => button.click()"
    )  # nothing is scrolled
    expect(page.get_by_role("button", name="Hide 3 steps")).to_have_count(1)
    page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
    expect(page.get_by_text("Three at once")).to_have_count(1)
    expect(page.locator(".row.tool")).to_have_count(3)
    expect(page.get_by_role("button", name="Hide 3 steps")).to_have_count(1)
    expect(page.locator(".row.tool").first).to_be_visible()
