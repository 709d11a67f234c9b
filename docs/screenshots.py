"""Take the README's screenshots of a running `make run`: python -m docs.screenshots http://127.0.0.1:8000 (needs Chromium)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from config.core import demo_login

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1280, "height": 800}


def main(site: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox"],
        )
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        sign_in(page, site)
        show_chat(page, site)
        page.screenshot(path=IMAGES / "chat.png")
        page.goto(f"{site}/admin/diagnostics/", wait_until="networkidle")
        page.screenshot(path=IMAGES / "diagnostics.png")
        browser.close()


def sign_in(page: Page, site: str) -> None:
    page.goto(f"{site}/accounts/login/")
    page.fill("input[name=login]", demo_login.DEMO_USERNAME)
    page.fill("input[name=password]", demo_login.DEMO_PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/chat/")


def show_chat(page: Page, site: str) -> None:
    """Have the demo model write a web page and then ask for permission to delete a file."""
    page.goto(f"{site}/chat/", wait_until="networkidle")
    for message, shown in (("Make a web page", "That was the script"), ("Delete a file", "delete")):
        box = page.locator("textarea").first
        box.fill(message)
        box.press("Enter")
        expect(page.locator("main")).to_contain_text(shown, timeout=30_000)
    expect(page.get_by_role("button", name="Approve").first).to_be_visible(timeout=30_000)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8000")
