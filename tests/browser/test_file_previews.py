"""Files that an answer names, and papers that the browser shows by itself, in the panel (S14)."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.artifact_page import Reader, reading
from tests.support.browser import Site

pytestmark = pytest.mark.browser

PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)
PNG = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NOBODYS = "00000000-0000-4000-8000-000000000000"
# The same text as the browser paints it live.
LIVE = """async (text) => {
  const {StreamingMarkdown} = await import("/static/js/lib/markdown.js");
  const box = document.createElement("div");
  new StreamingMarkdown(box).update(text, true);
  return [...box.querySelectorAll("a")].map(link => [link.className, link.getAttribute("href"), link.textContent]);
}"""
LIVE_PICTURES = """async (text) => {
  const {StreamingMarkdown} = await import("/static/js/lib/markdown.js");
  const box = document.createElement("div");
  new StreamingMarkdown(box).update(text, true);
  return [...box.querySelectorAll("img")].map(image => image.getAttribute("src"));
}"""
STORED = "links => links.map(link => [link.className, link.getAttribute('href'), link.textContent])"


@pytest.fixture(scope="module")
def reader(site: Site, browser: Browser, django_db_blocker: pytest.FixtureRequest) -> Iterator[Reader]:
    yield from reading(
        site, browser, django_db_blocker, "reads-named-files", viewport={"width": 1280, "height": 800}
    )


def test_a_file_named_in_an_answer_opens_beside_it(reader: Reader) -> None:
    """S14: by link and by bare URI, live and stored alike; what is gone says so, and nothing else is a link"""
    made = reader.makes("plan.md", "# The plan")
    text = (
        f"See [the plan](workspace://{made.upper()}#text/markdown), workspace://{made}/plan%20b.md. "
        f"[gone](workspace://{NOBODYS}) [bad](workspace://{made}0) `workspace://{made}` workspace://{made[:-2]}"
    )
    reader.says(text)
    reader.load()
    page, links = reader.page, reader.page.locator(".row.answer .prose").last.locator("a")
    told = links.evaluate_all(STORED)
    assert told == [
        ["file-link", f"/files/{made}/", "the plan"],
        ["file-link", f"/files/{made}/", "plan b.md"],
        ["file-link", f"/files/{NOBODYS}/", "gone"],
        ["missing", None, "bad"],
    ]
    assert page.evaluate(LIVE, text) == told
    links.nth(0).click()
    expect(reader.stage.get_by_role("heading", name="The plan")).to_be_visible()
    assert page.url.endswith(f"/chat/{reader.session_id}/")
    reader.forgives()  # the answer 404 is told in the console too
    links.nth(2).click()
    expect(page.locator("#toasts")).to_contain_text("deleted or isn't available")


@pytest.mark.parametrize("source", ["upload", "agent"])
def test_a_file_from_elsewhere_that_is_open_here_says_that_it_was_deleted(
    reader: Reader, source: str
) -> None:
    """S14: made in another chat, or in none; the chat that names it has it open"""

    def keep() -> str:
        from copilot.files import services as files
        from copilot.models import Session
        from tests.support import factories

        owner = Session.objects.get(pk=reader.session_id).owner
        place = factories.session(owner).pk if source == "agent" else None
        kept = files.store_file(owner.pk, name="far.md", content=b"# Far", source=source, session_id=place)
        return str(kept.pk)

    def delete() -> None:
        from copilot.files import services as files
        from copilot.models import WorkspaceFile

        file = WorkspaceFile.objects.get(pk=file_id)
        files.trash_file(file.owner_id, file.pk)

    file_id = str(reader.stored(keep))
    reader.says(f"See [what is far](workspace://{file_id}).")
    reader.load()
    reader.page.get_by_role("link", name="what is far").last.click()
    expect(reader.stage.get_by_role("heading", name="Far")).to_be_visible()
    reader.stored(delete)
    expect(reader.panel.locator(".failure")).to_contain_text("was deleted or isn't available")


def test_a_picture_that_an_answer_shows_is_shown(reader: Reader) -> None:
    """S14, W2.1: in one's own chat too, live and stored; what is no picture, or is gone, is a link with its name"""
    seen = reader.makes("chart.png", PNG)
    plan = reader.makes("plan.md", "# The plan")
    text = f"![Chart](workspace://{seen}) ![Plan](workspace://{plan}/plan.md) ![Gone](workspace://{NOBODYS})"
    reader.says(text)
    reader.forgives()  # the answer 404 is told in the console too
    reader.load()
    page, links = reader.page, reader.page.locator(".row.answer .prose").last.locator("a")
    expect(links.nth(1)).to_have_text("Plan")
    expect(links.nth(2)).to_have_text("Gone")
    picture = links.nth(0).locator("img")
    expect(picture).to_have_attribute("alt", "Chart")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    assert [link.get_attribute("class") for link in links.all()] == [
        "file-link picture",
        "file-link",
        "file-link",
    ]
    live = page.evaluate(LIVE_PICTURES, text + " ![spy](https://example.com/p.png)")
    assert live == [f"/api/v1/files/{one}/download?inline=1" for one in (seen, plan, NOBODYS)]
    links.nth(0).click()
    expect(reader.stage.locator("img")).to_be_visible()


def test_a_pdf_is_shown_by_the_browser_from_our_own_route(reader: Reader) -> None:
    """S14, S7: a frame without sandbox, its bytes inline from the file route, allowed to be framed by us alone"""
    file_id = reader.makes("paper.pdf", PDF)
    with reader.page.expect_response(lambda answer: f"{file_id}/download?inline=1" in answer.url) as answered:
        reader.opens(file_id)
    frame = reader.stage.locator("iframe")
    expect(frame).to_have_attribute("src", f"/api/v1/files/{file_id}/download?inline=1")
    assert frame.get_attribute("sandbox") is None
    headers = answered.value.headers
    assert headers["content-type"] == "application/pdf"
    assert headers["content-disposition"].startswith("inline")
    assert headers["content-security-policy"] == "frame-ancestors 'self'"
    expect(reader.panel.get_by_role("link", name="Download")).to_be_visible()
