"""Files on their way into a message, in a real browser (W2.8, W4.5)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.artifact_page import png
from tests.support.browser import Visitor, send_message

pytestmark = pytest.mark.browser

HOLD = """names => {
    const transfer = new DataTransfer();
    for (const [name, type, text] of names) transfer.items.add(new File([text], name, {type}));
    return transfer;
}"""
PASTE = """(box, transfer) => box.dispatchEvent(
    new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true, cancelable: true}))"""


def chips(page: Page) -> Locator:
    return page.locator(".attachment")


def arrived(page: Page, *names: str) -> None:
    expect(page.locator(".attachment[data-state=done] [data-slot=name]")).to_have_text(list(names))


def test_files_come_by_button_drop_and_paste_and_go_with_the_message(ada: Visitor) -> None:
    """W4.5 attachment, W2.8: limits are said before, each file has its progress, and one may be taken away"""
    page = ada.log_in()
    expect(page.get_by_role("button", name="Attach files")).to_have_attribute(
        "title", "Attach files (up to 20 files, 50 MB each)"
    )
    page.locator("#file").set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": png(8, 8)})
    arrived(page, "dot.png")
    expect(chips(page).locator("img")).to_have_js_property("naturalWidth", 8)
    dropped = page.evaluate_handle(HOLD, [["a.txt", "text/plain", "A"], ["b.txt", "text/plain", "B"]])
    page.dispatch_event("#scroll", "dragenter", {"dataTransfer": dropped})
    expect(page.locator("#drop")).to_contain_text("up to 20 files, 50 MB each")
    page.dispatch_event("#scroll", "drop", {"dataTransfer": dropped})
    expect(page.locator("#drop")).to_be_hidden()
    arrived(page, "dot.png", "a.txt", "b.txt")
    pasted = page.evaluate_handle(HOLD, [["image.png", "image/png", "not one"]])
    page.locator("#text").evaluate(PASTE, pasted)
    arrived(page, "dot.png", "a.txt", "b.txt", "image.png")
    expect(chips(page).nth(3).locator("> .icon")).to_be_visible()  # it only says that it is a picture
    expect(chips(page).nth(3).locator("img")).to_be_hidden()
    chips(page).nth(1).get_by_role("button", name="Remove").click()
    send_message(page, "all of these")
    expect(page.locator(".row.user [data-slot=files] li")).to_have_count(3)
    expect(page.locator(".row.user [data-slot=files]")).to_contain_text("b.txt")
    expect(chips(page)).to_have_count(0)


def test_copied_cells_are_text_and_not_the_picture_they_bring(ada: Visitor) -> None:
    """W2.8"""
    page = ada.log_in()
    cells = page.evaluate_handle(
        """() => { const held = new DataTransfer(); held.items.add(new File(["x"], "image.png", {type: "image/png"}));
        held.setData("text/plain", "a\\tb"); held.setData("text/html", "<table></table>"); return held; }"""
    )
    assert page.locator("#text").evaluate(PASTE, cells) is True  # nobody has taken it from the browser
    expect(chips(page)).to_have_count(0)


def test_a_cut_upload_stays_with_its_error_and_a_second_try(ada: Visitor) -> None:
    """W2.8: nothing is sent without the file, and nothing typed is lost"""
    page = ada.log_in()
    ada.outage = True
    page.route("**/api/v1/files", lambda route: route.abort("connectionreset"))
    page.locator("#file").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"A"})
    expect(chips(page)).to_contain_text("The upload was interrupted.")
    page.get_by_label("Message", exact=True).fill("with a file")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_have_value("with a file")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    page.unroute("**/api/v1/files")
    ada.outage = False
    chips(page).get_by_role("button", name="Try again").click()
    arrived(page, "a.txt")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".row.user a")).to_have_text(["a.txt"])


def test_what_is_too_large_or_too_many_is_never_sent(visit: Callable[..., Visitor]) -> None:
    """W2.8: on a phone as well, and nothing scrolls sideways"""
    visitor = visit(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page = visitor.log_in()
    page.evaluate(
        """() => { const big = new File([new Uint8Array(50 * 2 ** 20 + 1)], "film.mp4");
        const held = new DataTransfer(); held.items.add(big);
        for (let n = 0; n < 22; n += 1) held.items.add(new File(["x"], `${n}-with-a-long-name-indeed.txt`));
        document.querySelector("#file").files = held.files;
        document.querySelector("#file").dispatchEvent(new Event("change")); }"""
    )
    expect(page.locator("#problem")).to_have_text(
        re.compile(
            r"Files can be up to 50 MB\. Too large: film\.mp4 \(50 MB\)\. You can attach up to 20 files; 2 were left out"
        )
    )
    expect(page.locator(".attachment[data-state=done]")).to_have_count(20)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
