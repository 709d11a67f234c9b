"""Somebody who has never seen it goes the whole road without touching a mouse (W4.1, W4.5, A-S21)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser

FARTHEST = 120  # Tab presses; a page with more stops than that is not usable by keyboard
NAME = """() => {
  const at = document.activeElement;
  const labels = [...(at.labels ?? [])].map((label) => label.innerText).join(" ");
  return (at.getAttribute("aria-label") || labels || at.innerText || at.title || "").trim();
}"""


def reach(page: Page, name: str) -> None:
    """Tab on until the thing called so has the focus."""
    for _ in range(FARTHEST):
        if re.fullmatch(name, page.evaluate(NAME)):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{name!r} cannot be reached with the Tab key")


def press(page: Page, name: str) -> None:
    reach(page, name)
    page.keyboard.press("Enter")


def say(page: Page, text: str) -> None:
    reach(page, "Message")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def answered(page: Page, words: str) -> None:
    expect(page.locator(".row.answer .prose").last).to_contain_text(words)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def sign_up(visitor: Visitor) -> Page:
    page = visitor.tab("/")
    press(page, "Create an account")
    expect(page).to_have_url(re.compile("/accounts/signup/"))
    reach(page, "Email")
    page.keyboard.type(f"new-{visitor.email}")
    reach(page, "Password")
    page.keyboard.type("a-long-enough-phrase")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/chat/$"))
    visitor.is_connected(page)
    return page


@pytest.mark.timeout(400)
def test_a_newcomer_goes_the_whole_road_by_keyboard(
    visit: Callable[..., Visitor], browser: Browser, tmp_path: Path
) -> None:
    """W4.5, A-S21: sign up, chat, queue, stop, approve, attach, open an artifact, share, find, export"""
    page = sign_up(visit())
    say(page, "Hello there")
    answered(page, "scripted demo")

    say(page, "Give me a long answer")
    expect(page.locator(".row.answer .prose").last).to_contain_text("Part 1")
    say(page, "And what then?")
    expect(page.locator("#queue .chip")).to_have_count(1)
    press(page, "Stop")
    expect(page.locator(".row.notice")).to_have_text(re.compile("Stopped"))
    expect(page.locator("#queue .chip")).to_have_count(1)  # nothing accepted is lost

    say(page, "Please delete a file")
    expect(page.locator("#approvals .approval")).to_contain_text("Delete file?")
    press(page, "Approve")
    answered(page, "is in the trash")

    notes = tmp_path / "notes.txt"
    notes.write_text("a kraken was seen")
    with page.expect_file_chooser() as chooser:
        press(page, "Attach files?")
    chooser.value.set_files(notes)
    expect(page.locator(".attachment[data-state=done]")).to_have_count(1)
    say(page, "see attachment of the kraken")
    expect(page.locator(".row.user a").last).to_have_text("notes.txt")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()

    say(page, "write a file")
    answered(
        page, "The tools answered"
    )  # the panel is still open from the other file: only this says it is over
    expect(page.locator("#panel .stage.ready")).to_contain_text("Notes from the demo")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()

    theirs = browser.new_context().new_page()
    theirs.goto(share(page))
    expect(theirs.locator("main")).to_contain_text("Hello there")
    theirs.context.close()
    page.bring_to_front()

    page.keyboard.press("Control+k")
    page.keyboard.type("kraken")
    expect(page.get_by_role("option", name=re.compile("kraken")).first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".sought")).to_contain_text("kraken")
    expect(page.locator(".sought")).to_be_in_viewport()
    assert "a kraken" not in export(page)  # of a file, its name alone


def share(page: Page) -> str:
    press(page, "Share")
    press(page, "Create link")
    link = page.get_by_label("Link", exact=True)
    expect(link).to_have_value(re.compile("/share/"))
    address = link.input_value()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    return address


def export(page: Page) -> str:
    press(page, "More")
    for _ in range(20):
        if page.evaluate(NAME) == "Export…":
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Export chat")).to_be_visible()
    with page.expect_download() as download:
        press(page, "Export")
    text = Path(download.value.path()).read_text()
    assert "see attachment of the kraken" in text
    return text
