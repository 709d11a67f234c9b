"""The page of files, and the page of one, in a real browser (W3, S3, S13)."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.support.artifact_page import Reader, png, reading
from tests.support.browser import Site

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reader(site: Site, browser: Browser, django_db_blocker: pytest.FixtureRequest) -> Iterator[Reader]:
    yield from reading(
        site, browser, django_db_blocker, "keeps-files", viewport={"width": 1280, "height": 800}
    )


@pytest.fixture
def newcomer(site: Site, browser: Browser, django_db_blocker: pytest.FixtureRequest) -> Iterator[Reader]:
    """Somebody whose files no other test adds to."""
    yield from reading(
        site, browser, django_db_blocker, "has-no-files", viewport={"width": 1280, "height": 800}
    )


def go(reader: Reader, path: str = "/files/") -> Page:
    reader.page.goto(reader.visitor.site.url + path)
    return reader.page


def row(page: Page, name: str):
    return page.locator(".file").filter(has=page.get_by_role("link", name=name, exact=True))


def test_files_are_found_renamed_deleted_and_brought_back(newcomer: Reader) -> None:
    """W3, S3: search, type, rename, delete with undo, and how much is used"""
    reader = newcomer
    for name, content in {"Plan.md": "# Plan", "crew.csv": "a,b\n", "ship.png": png()}.items():
        reader.makes(name, content)
    page = go(reader)
    expect(page.locator("#quota-words")).to_have_text(
        re.compile(r"3 files · .*KB of 500.0.MB used · up to 50.0.MB each")
    )
    page.get_by_label("Search by name").fill("plan")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".file")).to_have_count(1)
    page.get_by_label("Search by name").fill("")
    page.get_by_label("Type").select_option("image")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".file-text a")).to_have_text(["ship.png"])
    row(page, "ship.png").locator(".renaming summary").click()
    expect(row(page, "ship.png").get_by_label("New name")).to_be_focused()
    page.keyboard.type("boat")  # the ending stays, selected is only what comes before
    page.keyboard.press("Enter")
    expect(page.locator(".file-text a")).to_have_text(["boat.png"])
    expect(page.get_by_label("Type")).to_have_value("image")  # where one was
    row(page, "boat.png").get_by_role("button", name="Delete boat.png").click()
    expect(page.get_by_text("No matching files.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".file-text a")).to_have_text(["boat.png"])


def test_a_list_of_many_files_has_pages(reader: Reader) -> None:
    """W3: every list is paged"""

    def many() -> None:
        from copilot.files import services as files
        from copilot.models import Session

        owner_id = Session.objects.get(pk=reader.session_id).owner_id
        for number in range(30):
            files.store_file(owner_id, name=f"page-{number:02}.txt", content=b"x", source="upload")

    reader.stored(many)
    page = go(reader, "/files/?q=page-")
    expect(page.locator(".file")).to_have_count(25)
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".file-text a")).to_have_text(
        [f"page-{number:02}.txt" for number in range(4, -1, -1)]
    )
    expect(page.locator(".pages")).to_contain_text("26–30")
    page.get_by_role("link", name="Newer").click()
    expect(page.locator(".file")).to_have_count(25)


def test_chosen_files_come_as_one_archive(reader: Reader, tmp_path: Path) -> None:
    """S13, W3: zip of the chosen ones; one alone comes as itself"""
    for name in ("pack-1.txt", "pack-2.txt"):
        reader.makes(name, name)
    page = go(reader, "/files/?q=pack-")
    expect(page.get_by_role("button", name="Download selected")).to_be_disabled()
    page.get_by_label("Select pack-1.txt").check()
    with page.expect_download() as single:
        page.get_by_role("button", name="Download selected").click()
    assert single.value.suggested_filename == "pack-1.txt"
    page.get_by_label("Select all").check()
    with page.expect_download() as both:
        page.get_by_role("button", name="Download selected").click()
    both.value.save_as(tmp_path / "both.zip")
    packed = zipfile.ZipFile(io.BytesIO((tmp_path / "both.zip").read_bytes()))
    assert {name: packed.read(name) for name in packed.namelist()} == {
        name: name.encode() for name in ("pack-1.txt", "pack-2.txt")
    }


def test_a_file_is_previewed_on_a_page_of_its_own(reader: Reader) -> None:
    """W3, S14: the same renderers, HTML still without an origin"""
    file_id = reader.makes("alone.html", "<h1>Alone</h1><script>document.title = origin</script>")
    page = go(reader)
    row(page, "alone.html").get_by_role("link", name="alone.html", exact=True).click()
    expect(page).to_have_url(re.compile(f"/files/{file_id}/$"))
    expect(page.frame_locator("iframe").get_by_role("heading", name="Alone")).to_be_visible()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    page.get_by_role("button", name="Source").click()
    expect(page.locator(".stage.ready code")).to_contain_text("<h1>Alone</h1>")


def test_files_can_be_managed_without_a_script(reader: Reader, browser: Browser) -> None:
    """E5: forms alone"""
    reader.makes("plain.txt", "plain")
    state = reader.page.context.storage_state()
    context = browser.new_context(java_script_enabled=False, storage_state=state)
    page = context.new_page()
    page.goto(reader.visitor.site.url + "/files/?q=plain")
    page.get_by_role("button", name="Delete plain.txt").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".file-text a")).to_have_text(["plain.txt"])
    context.close()


@pytest.mark.looks
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(reader: Reader, browser: Browser, theme: str) -> None:
    """W4.2, W4.1: list, one file, and the panel with each kind that we paint; on a phone nothing scrolls sideways"""
    kinds = {
        "axe.md": "# A\n\n| a |\n|---|\n| 1 |\n\n```python\nx = 1\n```\n",
        "axe.csv": "a,b\n1,2\n",
        "axe.json": '{"a": [1, null, "x"]}',
        "axe.py": "def f():\n    return 'x'\n",
        "axe.txt": "text",
        "axe.bin": bytes(range(256)),
        "axe.png": png(),
    }
    ids = [reader.makes(name, content) for name, content in kinds.items()]
    state = reader.page.context.storage_state()
    width = 1280 if theme == "light" else 390
    context = browser.new_context(
        storage_state=state, color_scheme=theme, viewport={"width": width, "height": 780}
    )
    page = context.new_page()
    for path in ("/files/", f"/files/{ids[0]}/"):
        page.goto(reader.visitor.site.url + path)
        expect(page.locator(".file, .stage.ready").first).to_be_visible()
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.goto(f"{reader.visitor.site.url}/chat/{reader.session_id}/")
    page.locator("#artifacts").click()
    expect(page.locator("#panel .panel-list li").first).to_be_visible()
    assert serious(page) == []
    for name in kinds:
        page.locator("#panel .piece").filter(has_text=name).first.click()
        expect(page.locator("#panel .stage.ready")).to_be_visible()
        assert serious(page, "#panel") == [], name
        page.get_by_role("button", name="All artifacts").click()
    context.close()


def serious(page: Page, where: str | None = None) -> list[str]:
    found = Axe().run(page, context=where).response["violations"]
    return [
        f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
