"""What is made here goes out and comes in again: the whole road of a conversation with its files (S21)."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Site, Visitor, choose_in_menu, send_message

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PHRASE = "open sesame"
Stored = Callable[[Callable[[], object]], object]


def share(page: Page, password: str) -> str:
    """A new link for the open chat; one that stood is replaced."""
    page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".sharing-preview")).to_contain_text("see attachment")
    dialog.get_by_label("Tool inputs and results").check()
    expect(dialog.locator(".sharing-files input:checked")).to_have_count(2)
    dialog.get_by_label("Password").fill(password)
    dialog.get_by_role("button", name="Create link").click()
    expect(page.locator("#sharing[data-made]")).to_be_visible()
    address = dialog.get_by_label("Link", exact=True).input_value()
    page.keyboard.press("Escape")
    return address


def files_of(page: Page, link: str) -> list[str]:
    """Download what a visitor who knows the password gets."""
    page.goto(link)
    page.get_by_label("Password").fill(PHRASE)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("main")).to_contain_text("see attachment")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all").click()
    return sorted(zipfile.ZipFile(download.value.path()).namelist())


def archive_of(page: Page) -> bytes:
    choose_in_menu(page, "Export…")
    page.get_by_label("JSON, to import again").check()
    page.get_by_label("Files, as an archive").check()
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as download:
        page.locator(".toast").get_by_role("button", name="Download").click()
    return Path(download.value.path()).read_bytes()


def give_up(visitor: Visitor, page: Page) -> None:
    from tests.support.factories import PASSWORD  # models, which need Django to be set up

    visitor.outage = True  # the socket is closed, and may not come back
    page.goto(visitor.site.url + "/settings/account/delete/")
    page.get_by_label(re.compile("to confirm")).fill(visitor.email)
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Delete my account").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Your account is scheduled for deletion")


def erased(email: str) -> list[str]:
    """The days of grace go by and the job runs; what is left of the account's conversation and files."""
    from django.utils import timezone

    from copilot.accounts import deletion
    from copilot.models import AccountDeletion, Session, WorkspaceFile
    from tests.support.exports import objects_of

    job = AccountDeletion.objects.get(user__email=email)
    AccountDeletion.objects.filter(pk=job.pk).update(due_at=timezone.now())
    deletion.run_deletion(job.pk)
    job.refresh_from_db()
    assert job.finished_at is not None, job.error
    owned = [model.objects.filter(owner=job.user_id).exists() for model in (Session, WorkspaceFile)]
    return objects_of(job.user_id) + [str(one) for one in owned if one]


def test_a_conversation_with_files_goes_out_comes_in_elsewhere_and_is_erased(
    visit: Callable[..., Visitor], browser: Browser, site: Site, stored: Stored
) -> None:
    """S21: upload, a file of the agent's, shown, shared with a password, unlocked, zipped, shared again, exported, imported, erased"""
    ada, bob = visit(), visit()
    page = ada.log_in()
    page.locator("input[type=file]").first.set_input_files(
        {"name": "log.txt", "mimeType": "text/plain", "buffer": b"calm seas"}
    )
    expect(page.locator(".attachment[data-state=done]")).to_have_count(1)
    send_message(page, "see attachment and write a file")
    expect(page.locator("#panel .stage.ready")).to_contain_text("Notes from the demo")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    page.keyboard.press("Escape")

    theirs = browser.new_context().new_page()
    first = share(page, PHRASE)
    names = files_of(theirs, first)
    assert len(names) == 2
    assert "log.txt" in names
    second = share(page, PHRASE)
    assert (theirs.goto(first).status, files_of(theirs, second)) == (404, names)

    archive = archive_of(page)
    inside = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert sorted(Path(name).name for name in inside if name.startswith("files/")) == names
    elsewhere = bob.log_in()
    elsewhere.goto(site.url + "/settings/account/")
    elsewhere.get_by_label("Document or archive").set_input_files(
        {"name": "chat.zip", "mimeType": "application/zip", "buffer": archive}
    )
    elsewhere.get_by_role("button", name="Import").click()
    expect(elsewhere.locator(".imported")).to_be_visible()

    give_up(ada, page)
    assert theirs.goto(second).status == 404
    assert stored(lambda: erased(ada.email)) == []
    elsewhere.reload()
    expect(elsewhere.locator(".row.user a").first).to_have_text("log.txt")
    with elsewhere.expect_download() as kept:
        elsewhere.goto(f"{site.url}/files/")
        elsewhere.get_by_role("link", name=re.compile("Download.*log.txt")).click()
    assert Path(kept.value.path()).read_bytes() == b"calm seas"
    theirs.context.close()
