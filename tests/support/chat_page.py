"""Read the chat page in browser tests."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

LONG_ANSWER_PROMPT = "Give me a long answer"


def find_answers(page: Page) -> Locator:
    return page.locator(".row.answer .prose")


def find_user_messages(page: Page) -> Locator:
    return page.locator(".row.user:not(.pending) .bubble")


def expect_idle(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def create_share_link(page: Page) -> str:
    """Create the link in the open dialog and return its address."""
    page.get_by_role("button", name="Create link").click()
    url = page.get_by_label("Link", exact=True)
    expect(url).to_have_value(re.compile("/share/[0-9a-f-]{36}$"))
    return url.input_value()
