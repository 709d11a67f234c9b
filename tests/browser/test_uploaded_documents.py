"""What somebody uploaded, opened by its own address in a real browser: nothing of it runs (S7)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from playwright.sync_api import Error, Page

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser

BEACON = b"new Image().src='/ran';document.title='ran';"
HTML = b"<html><script>" + BEACON + b"</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>" + BEACON + b"</script></svg>"
HOSTILE = {
    "page.html": HTML,
    "page.txt": HTML,
    "drawing.svg": SVG,
    "feed.xml": b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><script>"
    + BEACON
    + b"</script></html>",
    "script.js": BEACON,
    "polyglot.gif": b"GIF89a=1;" + BEACON,
    "polyglot.pdf": b"%PDF-1.7\n" + HTML,
    "notes.md": b"# Title\n\n<script>" + BEACON + b"</script>\n",
}
INLINE = {"polyglot.gif", "polyglot.pdf", "notes.md"}


def test_nothing_that_was_uploaded_runs_when_it_is_opened(
    visit: Callable[[], Visitor], stored: Callable[[Callable[[], dict[str, UUID]]], dict[str, UUID]]
) -> None:
    """A-S7.1, A-S7.3"""
    visitor = visit()
    home = visitor.log_in()
    ids = stored(lambda: _uploaded(visitor.email))
    asked: list[str] = []
    visitor.context.on("request", lambda request: asked.append(request.url))
    for name, file_id in ids.items():
        page = visitor.context.new_page()
        path = f"{visitor.site.url}/api/v1/files/{file_id}/download?inline=1"
        assert _opens(page, path) is (name in INLINE), name
        if name == "notes.md":
            assert "<script>" in page.inner_text("body")
        assert page.title() != "ran"
        page.close()
        assert home.evaluate(_AS_SCRIPT, path) == "error", name
    assert home.title() != "ran"
    assert [url for url in asked if url.endswith("/ran")] == []
    visitor.complaints.clear()  # what the browser refused to run it said aloud


_AS_SCRIPT = """path => new Promise((resolve) => {
  const script = document.createElement("script");
  script.src = path;
  script.onload = () => resolve("load");
  script.onerror = () => resolve("error");
  document.head.append(script);
})"""


def _opens(page: Page, path: str) -> bool:
    """Whether it is shown; what is only to be saved begins a download instead."""
    try:
        page.goto(path)
    except Error as problem:
        assert "Download is starting" in problem.message or "ERR_ABORTED" in problem.message
        return False
    return True


def _uploaded(email: str) -> dict[str, UUID]:
    from django.contrib.auth.models import User

    from copilot.files import services as files

    owner = User.objects.get(email=email).pk
    return {
        name: files.store_file(owner, name=name, content=content, source="upload").id
        for name, content in HOSTILE.items()
    }
