"""Taking chats along, bringing them in, and leaving, in a real browser (S15–S17, W2.7, W3)."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visitor, send_message

pytestmark = pytest.mark.browser


def _ask_for_export(page: Page) -> None:
    page.locator("#sessions .session").first.hover()
    page.locator("#sessions .session").first.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Export…").click()
    expect(page.get_by_role("dialog", name="Export chat")).to_be_visible()


def test_a_chat_is_exported_from_its_menu_and_imported_again(ada: Visitor, tmp_path: Path) -> None:
    """S15, S16: a document at once, an archive when it is ready, and a chat with a banner from it."""
    page = ada.log_in()
    send_message(page, "Hello")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    _ask_for_export(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    assert download.value.suggested_filename.endswith(".md")
    assert "## User · " in Path(download.value.path()).read_text()
    expect(page.get_by_role("dialog", name="Export chat")).to_be_hidden()

    _ask_for_export(page)
    page.get_by_label("JSON, to import again").check()
    page.get_by_label("Files, as an archive").check()
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as download:
        page.locator(".toast").get_by_role("button", name="Download").click()
    archive = tmp_path / "chat.zip"
    download.value.save_as(archive)
    document = json.loads(zipfile.ZipFile(archive).read("conversation.json"))
    assert document["messages"][0]["parts"] == [{"type": "user", "text": "Hello"}]

    page.goto(ada.site.url + "/settings/account/")
    expect(page.get_by_role("link", name="Download")).to_have_count(1)
    page.get_by_label("Document or archive").set_input_files(archive)
    page.get_by_role("button", name="Import").click()
    expect(page).to_have_url(re.compile("/chat/[0-9a-f-]+/$"))
    ada.is_connected(page)
    expect(page.locator(".imported")).to_be_visible()
    expect(page.locator(".row.user .bubble")).to_have_text("Hello")
    send_message(page, "Go on")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")


def test_what_is_wrong_with_a_document_is_said_on_the_page(ada: Visitor, tmp_path: Path) -> None:
    """S16: the path of each problem; and a document that was imported before is linked."""
    page = ada.log_in()
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"schema": "pilothouse.conversation/2", "messages": 1}))
    page.goto(ada.site.url + "/settings/account/")
    page.get_by_label("Document or archive").set_input_files(wrong)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("alert")).to_contain_text("messages: ")
    ada.complaints = [one for one in ada.complaints if "400" not in one]


def test_an_account_is_given_up_and_kept_by_coming_back(ada: Visitor) -> None:
    """S17, W3: typed, proved, signed out everywhere; signing in brings it back."""
    page = ada.log_in()
    send_message(page, "Remember me")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    other = ada.tab()
    page.goto(ada.site.url + "/settings/account/")
    page.get_by_role("link", name="Delete my account…").click()
    page.get_by_label(re.compile("to confirm")).fill(ada.email)
    page.get_by_label("Your password").fill("a wrong one")
    page.get_by_role("button", name="Delete my account").click()
    expect(page.locator("#id_password_error")).to_have_text("Wrong password.")
    from tests.support.factories import PASSWORD  # models, which need Django to be set up

    page.get_by_label(re.compile("to confirm")).fill(ada.email)
    page.get_by_label("Your password").fill(PASSWORD)
    ada.outage = True  # the other tab's socket is closed, and may not come back
    page.get_by_role("button", name="Delete my account").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Your account is scheduled for deletion")
    expect(other.locator("html")).not_to_have_attribute("data-connection", "open")
    other.close()
    page.goto(ada.site.url + "/chat/")
    expect(page).to_have_url(re.compile("/accounts/login/"))
    page.close()
    page = ada.sign_in()
    expect(page.locator("#sessions .session")).to_have_count(1)
    ada.complaints = [one for one in ada.complaints if "400" not in one]
