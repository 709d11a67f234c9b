"""The pages around the conversation in a real browser (W1, W2.9, W4)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.support.browser import Site, Visitor, choose_in_menu, send_message

pytestmark = pytest.mark.browser

FIRST_PAGE_BYTES = 150 * 1024  # W4.3


def test_a_visitor_signs_up_and_lands_in_an_empty_chat(visit: Callable[..., Visitor]) -> None:
    """W1.1, W1.3."""
    visitor = visit()
    page = visitor.tab("/")
    page.get_by_role("link", name="Create an account").click()
    page.get_by_label("Email").fill(f"new-{visitor.email}")
    page.get_by_label("Password").fill("a-long-enough-phrase")
    page.get_by_role("button", name="Create account").click()
    expect(page).to_have_url(re.compile("/chat/$"))
    expect(page.locator(".examples a")).to_have_count(4)
    visitor.is_connected(page)
    page.locator(".examples a").first.click()
    expect(page.get_by_label("Message", exact=True)).not_to_have_value("")
    expect(page).to_have_url(re.compile("/chat/$"))


def test_the_open_page_is_in_view_among_the_tabs_of_a_phone(visit: Callable[..., Visitor]) -> None:
    """W4.1: at once, and after the window became narrow"""
    visitor = visit(viewport={"width": 390, "height": 780})
    page = visitor.log_in()
    for path in ("/billing/plan", "/settings/schedules/", "/accounts/password/change/"):
        page.goto(visitor.site.url + path)
        expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)
    page.set_viewport_size({"width": 1280, "height": 780})
    page.set_viewport_size({"width": 390, "height": 780})
    expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)


def test_a_chat_is_renamed_deleted_and_brought_back(ada: Visitor) -> None:
    """W2.7, W2.9."""
    page = ada.log_in()
    send_message(page, "Hello")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    choose_in_menu(page, "Rename")
    page.get_by_role("textbox", name="Title").fill("Ships and wheels")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Ships and wheels")
    other = ada.tab()
    choose_in_menu(other, "Delete")
    expect(other.locator("#sessions .session")).to_have_count(0)
    expect(page).to_have_url(re.compile("/chat/$"))  # the tab that showed it has nothing to show any more
    other.get_by_role("button", name="Undo").click()
    expect(other.locator("#sessions .session")).to_have_text([re.compile("Ships and wheels")])
    expect(other.locator(".row.user")).to_have_count(1)


def test_deleting_the_open_chat_can_still_be_undone_on_the_page_it_leads_to(ada: Visitor) -> None:
    """W2.7."""
    page = ada.log_in()
    send_message(page, "Hello")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    choose_in_menu(page, "Delete")
    expect(page).to_have_url(re.compile("/chat/$"))
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".row.user .bubble")).to_have_text("Hello")


def test_a_draft_survives_a_reload(ada: Visitor) -> None:
    """W2.8."""
    page = ada.log_in()
    page.get_by_label("Message", exact=True).fill("half a thou")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")


def test_a_key_is_shown_once_and_revoked(ada: Visitor) -> None:
    page = ada.log_in()
    page.goto(ada.site.url + "/settings/keys/")
    page.get_by_label("Name").fill("my script")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#secret")).to_have_text(re.compile(r"^ph_user_\w{10}_[\w-]{43}$"))
    page.goto(ada.site.url + "/settings/keys/")
    expect(page.locator("#secret")).to_have_count(0)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator("table")).to_have_count(0)


def test_the_choice_of_colours_is_kept(visit: Callable[..., Visitor]) -> None:
    """W4.1: by the system's preference and by choice, painted by the server at once."""
    page = visit(color_scheme="light").tab("/")
    light = _background(page)
    page.get_by_text("Dark", exact=True).click()
    dark = _background(page)
    page.reload()
    assert _background(page) == dark != light
    assert _background(visit(color_scheme="dark").tab("/")) == dark


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_older_messages_come_on_scrolling_up_and_nothing_moves(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.2."""

    def long_chat() -> str:
        from django.contrib.auth.models import User

        from tests.support import factories

        session = factories.session(User.objects.get(email=ada.email), title="Long")
        for number in range(120):
            factories.message(session, "user" if number % 2 else "assistant", content=f"Line {number}")
        return str(session.pk)

    page = ada.log_in()
    page.goto(f"{ada.site.url}/chat/{stored(long_chat)}/")
    expect(page.locator(".row")).to_have_count(50)
    expect(page.get_by_text("Line 119")).to_be_in_viewport()
    line = page.get_by_text("Line 75", exact=True)
    before = line.evaluate(
        "row => (document.querySelector('#scroll').scrollTo(0, 300), row.getBoundingClientRect().top)"
    )
    expect(page.locator(".row")).to_have_count(100)
    assert line.evaluate("row => row.getBoundingClientRect().top") == pytest.approx(before, abs=2)
    page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
    expect(page.locator(".row")).to_have_count(120)
    expect(page.locator(".row .prose").first).to_have_text("Line 0")


def test_older_steps_join_those_that_stand_there_and_nothing_moves(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.2, W2.3: a page begins inside a turn, between a call and its result; its first rows are folded away"""

    def long_turns() -> str:
        from django.contrib.auth.models import User

        from tests.support import factories

        session = factories.session(User.objects.get(email=ada.email), title="Long")
        for number in range(8):
            turn = factories.turn(session, "succeeded")
            factories.message(session, content=f"Do {number}", turn=turn)
            for step in range(9):
                call = f"c{number}-{step}"
                data = {"tool": "current_time", "arguments": {}}
                factories.message(session, "tool_call", call_id=call, data=data, turn=turn)
                said = {"tool": "current_time", "success": True, "preview": call, "duration_ms": 5}
                factories.message(
                    session, "tool_result", call_id=call, data=said | {"truncated": False}, turn=turn
                )
            factories.message(session, "assistant", content=f"Done {number}. " + "Word " * 400, turn=turn)
        return str(session.pk)

    page = ada.log_in()
    page.goto(f"{ada.site.url}/chat/{stored(long_turns)}/")
    ada.is_connected(page)
    expect(page.locator("[data-row]:not([data-folded])").first).to_contain_text("Done 5")
    line = page.get_by_text("Do 6", exact=True)
    where = "row => (document.querySelector('#scroll').scrollTo(0, 0), row.getBoundingClientRect().top)"
    before = line.evaluate(where)
    expect(page.get_by_text("Do 3", exact=True)).to_have_count(1)
    assert line.evaluate("row => row.getBoundingClientRect().top") == pytest.approx(before, abs=2)
    expect(page.locator(".row.fold")).to_have_text([re.compile("Show 9 steps")] * 5)


def test_the_first_chat_page_is_small_and_requests_no_other_host(ada: Visitor, site: Site) -> None:
    """W4.3: 150 KB compressed in total, no third party, one socket."""
    ada.log_in()
    sizes: dict[str, int] = {}
    sockets: list[str] = []

    def weigh(response: Response) -> None:
        sizes[response.url] = len(gzip.compress(response.body()))

    page = ada.context.new_page()
    page.on("response", weigh)
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.goto(site.url + "/chat/")
    ada.is_connected(page)
    page.wait_for_load_state("networkidle")
    assert all(url.startswith(site.url) for url in sizes)
    assert sum(sizes.values()) <= FIRST_PAGE_BYTES
    assert len(sockets) == 1


def test_a_page_that_does_not_exist_says_so_kindly(browser: Browser, site: Site) -> None:
    page = browser.new_page()
    answer = page.goto(site.url + "/nowhere/")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    page.close()


def test_a_memory_is_changed_and_forgotten(ada: Visitor, stored: Callable[[Callable[[], str]], str]) -> None:
    """A25.1: seen, edited, deleted and switched off by its user."""

    def memory() -> str:
        from django.contrib.auth.models import User

        from copilot.memories import services as memories

        return str(memories.add_memory(User.objects.get(email=ada.email).pk, "Drinks tea.").pk)

    page = ada.log_in()
    stored(memory)
    page.goto(ada.site.url + "/settings/memories/")
    page.get_by_role("textbox", name="Memory").fill("Drinks coffee.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("textbox", name="Memory")).to_have_value("Drinks coffee.")
    page.get_by_role("button", name="Turn memory off").click()
    expect(page.get_by_role("button", name="Turn memory on")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No memories yet.")).to_be_visible()


def test_a_task_is_scheduled_and_cancelled(ada: Visitor) -> None:
    """A26.1."""
    page = ada.log_in()
    page.goto(ada.site.url + "/settings/schedules/")
    page.get_by_label("Name").fill("Plants")
    page.get_by_label("What to do").fill("Water the plants")
    page.get_by_label("How often").select_option("weekdays")
    page.get_by_role("button", name="Schedule task").click()
    expect(page.get_by_role("heading", name="Plants")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No tasks yet.")).to_be_visible()


def test_an_agent_is_made_edited_and_its_builder_opened(ada: Visitor) -> None:
    """A27, W3."""
    page = ada.log_in()
    page.goto(ada.site.url + "/agents/new/")
    page.get_by_label("Name", exact=True).fill("Planner")
    page.get_by_label("Instructions").fill("Plan a trip.")
    page.get_by_role("button", name="Create agent").click()
    expect(page.get_by_role("heading", level=2, name="Version 1")).to_be_visible()
    page.get_by_label("What it does").fill("Plans trips.")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.get_by_role("heading", level=2, name="Version 2")).to_be_visible()
    page.get_by_role("button", name="Edit in chat").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Build: Planner")


def test_standing_instructions_are_kept(ada: Visitor) -> None:
    """A30.1, W3."""
    page = ada.log_in()
    page.goto(ada.site.url + "/settings/")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Custom instructions").fill("Answer briefly.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Saved")
    expect(page.get_by_label("Custom instructions")).to_have_value("Answer briefly.")
    expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
