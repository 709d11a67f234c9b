"""Versions, retries, commands and undo in a real browser (W2.6, W2.7, W2.8)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Visitor, send_message
from tests.support.chat_page import expect_idle, find_answers, find_user_messages

pytestmark = pytest.mark.browser


def versions(page: Page) -> Locator:
    return page.locator(".row.user .versions:visible")


def say(page: Page, text: str) -> None:
    before = find_answers(page).count()
    send_message(page, text)
    expect(find_answers(page)).to_have_count(before + 1)
    expect_idle(page)


def edit(page: Page, place: int, text: str) -> None:
    row = page.locator(".row.user").nth(place)
    row.hover()
    row.get_by_role("button", name="Edit and send again").click()
    page.get_by_label("Edit your message").fill(text)
    page.keyboard.press("Enter")


def test_an_edited_message_is_a_version_that_every_tab_can_switch(ada: Visitor) -> None:
    """W2.7, W2.10: ‹ 2/2 ›, and back with everything that followed; a reload shows the same."""
    page = ada.log_in()
    say(page, "Hello one")
    say(page, "Hello two")
    other = ada.tab(page.url.removeprefix(ada.site.url))
    expect(find_user_messages(other)).to_have_text(["Hello one", "Hello two"])
    edit(page, 0, "Hello again")
    for tab in (page, other):
        expect(find_user_messages(tab)).to_have_text(["Hello again"])
        expect(versions(tab)).to_contain_text("2/2")
        expect_idle(tab)
    page.get_by_role("button", name="Previous version").click()
    for tab in (page, other):
        expect(find_user_messages(tab)).to_have_text(["Hello one", "Hello two"])
        expect(versions(tab)).to_contain_text("1/2")
        expect(find_answers(tab)).to_have_count(2)
    page.reload()
    expect(find_user_messages(page)).to_have_text(["Hello one", "Hello two"])
    expect(page.get_by_role("button", name="Previous version")).to_be_disabled()
    page.get_by_role("button", name="Next version").click()
    expect(find_user_messages(page)).to_have_text(["Hello again"])


def test_files_of_a_version_are_shown_in_that_version_alone(ada: Visitor) -> None:
    """W2.7, S14: the file of the other version is in the panel's list, and no card here"""
    page = ada.log_in()
    cards = page.locator("#transcript .made [data-file]")
    send_message(page, "Write a file")
    expect(cards).to_have_count(1)
    expect_idle(page)
    first = cards.get_attribute("data-file")
    edit(page, 0, "Write a file again")
    expect(versions(page)).to_contain_text("2/2")
    expect(page.locator(f'.made:not(:has([data-file="{first}"]))')).to_have_count(1)
    expect_idle(page)
    expect(cards).to_have_count(1)
    page.get_by_role("button", name="Previous version").click()
    expect(cards).to_have_count(1)
    expect(cards).to_have_attribute("data-file", str(first))


def test_an_answer_is_retried_and_says_how_long_it_took(ada: Visitor) -> None:
    """W2.7: time, model, duration; live and after a reload"""
    page = ada.log_in()
    say(page, "Hello there")
    row = page.locator(".row.answer").last
    took = row.locator("[data-slot=duration]")
    expect(took).to_have_text(re.compile(r"\d+(\.\d)? m?s"))
    said = took.inner_text()
    page.reload()
    expect(took).to_have_text(said)
    page.get_by_role("button", name="Retry").click()
    expect(versions(page)).to_contain_text("2/2")
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    expect(find_answers(page)).to_have_count(1)
    expect_idle(page)


def test_a_failed_turn_is_retried_from_its_notice(ada: Visitor, stored: Callable[..., object]) -> None:
    """W2.6, A30.6"""

    def fail() -> str:
        from tests.support import factories

        session = factories.session(factories.user(ada.email.partition("@")[0]))
        turn = factories.turn(session, "failed", failure_code="overloaded")
        factories.message(session, content="Hello there", turn=turn, origin="web")
        factories.message(session, "notice", data={"code": "overloaded"}, turn=turn)
        return str(session.pk)

    session_id = stored(fail)
    ada.log_in()
    page = ada.tab(f"/chat/{session_id}/")
    page.locator(".row.notice").get_by_role("button", name="Retry").click()
    expect(page.locator(".row.notice")).to_have_count(0)
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    expect(find_answers(page)).to_contain_text("kill -9")
    expect(versions(page)).to_contain_text("2/2")
    expect_idle(page)


def test_an_edit_can_be_given_up(ada: Visitor) -> None:
    page = ada.log_in()
    say(page, "Hello there")
    page.get_by_label("Message", exact=True).press("ArrowUp")
    page.get_by_label("Edit your message").fill("Never mind")
    page.keyboard.press("Escape")
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    expect(find_user_messages(page)).to_be_visible()
    expect(page.get_by_label("Edit your message")).to_have_count(0)


def test_undo_asks_first_and_gives_the_words_back(ada: Visitor) -> None:
    """A30.5, W3: every destructive act confirms"""
    page = ada.log_in()
    say(page, "Hello one")
    say(page, "Hello two")
    send_message(page, "/undo")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("not undone")
    dialog.get_by_role("button", name="Cancel").click()
    expect(find_user_messages(page)).to_have_count(2)
    send_message(page, "/undo")
    dialog.get_by_role("button", name="Undo").click()
    expect(find_user_messages(page)).to_have_text(["Hello one"])
    expect(page.locator(".toast")).to_contain_text("not undone")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello two")


def test_the_menu_offers_commands_and_fills_them_in(visit: Callable[..., Visitor]) -> None:
    """W2.8, on a phone's width too"""
    ada = visit(viewport={"width": 360, "height": 640})
    page = ada.log_in()
    say(page, "Hello there")
    box = page.get_by_label("Message", exact=True)
    box.press_sequentially("/")
    options = page.get_by_role("option")
    expect(options.first).to_be_visible()
    box.press_sequentially("re")
    expect(options.filter(visible=True)).to_have_count(1)
    box.press("Enter")
    expect(box).to_have_value("/rename ")
    box.press_sequentially("Two boats")
    box.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Two boats")
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    expect(page.locator("body")).to_have_js_property("scrollWidth", 360)


def test_a_side_question_is_answered_above_the_composer(ada: Visitor) -> None:
    """A30.3, W2.8: the conversation does not change"""
    page = ada.log_in()
    say(page, "Hello there")
    send_message(page, "/btw what is this?")
    card = page.get_by_role("region", name="Side question")
    expect(card).to_contain_text("what is this?")
    expect(card.locator(".prose")).to_contain_text(re.compile(r"\w+"))
    expect(find_user_messages(page)).to_have_text(["Hello there"])
    card.get_by_role("button", name="Close").click()
    expect(card).to_be_hidden()


def test_new_leads_to_another_chat(ada: Visitor) -> None:
    page = ada.log_in()
    say(page, "Hello there")
    first = page.url
    send_message(page, "/new")
    expect(page).not_to_have_url(first)
    expect(find_user_messages(page)).to_have_count(0)


def test_an_unknown_command_is_sent_as_text_and_said_so(ada: Visitor) -> None:
    """A30.2"""
    page = ada.log_in()
    send_message(page, "/shrug")
    expect(find_user_messages(page)).to_have_text(["/shrug"])
    expect(page.locator(".toast")).to_contain_text("sent as a message")
    expect_idle(page)
