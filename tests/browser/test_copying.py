"""Copying where the browser offers a page no clipboard of its own: over plain http (W2.7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visitor
from tests.support.chat_page import create_share_link

pytestmark = pytest.mark.browser

PLAIN_HTTP = "Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined});"
NO_WAY = "Document.prototype.execCommand = () => false;"
ANSWER = "It is **safe**:\n\n```python\nprint('two\\nlines')\n```\n"


def answered_chat(email: str) -> str:
    from django.contrib.auth.models import User

    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="Copies")
    turn = factories.turn(session, "succeeded")
    factories.message(session, content="Is it safe?", turn=turn)
    factories.message(session, "assistant", content=ANSWER, turn=turn)
    return f"/chat/{session.pk}/"


@pytest.fixture
def chat(ada: Visitor, stored: Callable[[Callable[[], str]], str]) -> Page:
    ada.context.add_init_script(PLAIN_HTTP)
    ada.log_in()
    return ada.tab(stored(lambda: answered_chat(ada.email)))


def pasted(page: Page) -> str:
    box = page.get_by_label("Message", exact=True)
    box.fill("")
    box.press("Control+V")
    return box.input_value()


def test_a_message_is_copied_over_plain_http_and_nothing_else_moves(chat: Page) -> None:
    """W2.7: what was selected and focused still is"""
    button = chat.locator(".row.answer [data-act=copy]")
    chat.evaluate("getSelection().selectAllChildren(document.querySelector('.row.answer strong'))")
    button.focus()
    chat.keyboard.press("Enter")
    expect(chat.locator("#announcer")).to_have_text("Copied")
    expect(button).to_be_focused()
    assert chat.evaluate("String(getSelection())") == "safe"
    expect(chat.locator("body > textarea")).to_have_count(0)
    assert pasted(chat) == ANSWER
    expect(button.locator("use")).to_have_attribute("href", "#i-copy")


def test_code_is_copied_over_plain_http_and_the_button_says_its_own_word_again(chat: Page) -> None:
    """W2.1: also after a second click on it"""
    button = chat.locator(".code button")
    button.click(click_count=2)
    assert pasted(chat).strip() == "print('two\\nlines')"
    expect(button).to_have_text("Copy")


def test_a_link_is_copied_over_plain_http_out_of_its_dialog(chat: Page) -> None:
    """S9: nothing outside of an open dialog can be selected"""
    chat.get_by_role("button", name="Share", exact=True).click()
    dialog = chat.get_by_role("dialog")
    link = create_share_link(chat)
    dialog.get_by_role("button", name="Copy link").click()
    expect(chat.locator("#announcer")).to_have_text("Copied")
    chat.keyboard.press("Escape")
    assert pasted(chat) == link


def test_a_key_is_copied_over_plain_http(ada: Visitor) -> None:
    """W3: a page around the chat"""
    ada.context.add_init_script(PLAIN_HTTP)
    ada.log_in()
    page = ada.tab("/settings/keys/")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy", exact=True).click()
    page.get_by_label("Name").press("Control+V")
    expect(page.get_by_label("Name")).to_have_value(secret)


def test_what_cannot_be_copied_is_said(chat: Page) -> None:
    """W2.7: no button claims what did not happen"""
    chat.evaluate(NO_WAY)
    chat.locator(".code button").click()
    expect(chat.locator("#announcer")).to_have_text("Not copied")
