"""Passkeys in a real browser, with Chromium's virtual authenticator."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser


def with_authenticator(page: Page) -> None:
    """A phone or key that says yes at once, and keeps what it made for this page."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    devtools.send(
        "WebAuthn.addVirtualAuthenticator",
        {
            "options": {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": True,
                "automaticPresenceSimulation": True,
            }
        },
    )


def sign_out(page: Page) -> None:
    """Leave the page first: what it still asks for would be refused."""
    page.goto("about:blank")
    page.context.clear_cookies()


def test_a_passkey_is_added_and_signs_in_without_a_password(visit: Callable[..., Visitor]) -> None:
    """By the name localhost: a passkey belongs to a name, not to an address"""
    from tests.support.factories import PASSWORD

    visitor = visit()
    site = visitor.site.url.replace("127.0.0.1", "localhost")
    page = visitor.tab("/accounts/login/")
    with_authenticator(page)
    page.goto(f"{site}/accounts/login/")
    page.get_by_label("Email").fill(visitor.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile("/chat/$"))
    page.goto(f"{site}/accounts/2fa/")
    page.get_by_role("link", name="Add a passkey").click()
    if "reauthenticate" in page.url:
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Name").fill("My laptop")
    page.get_by_role("button", name="Create passkey").click()
    expect(page).not_to_have_url(re.compile("webauthn/add"))
    page.goto(f"{site}/accounts/2fa/webauthn/")
    expect(page.get_by_role("heading", name="My laptop")).to_be_visible()
    sign_out(page)
    page.goto(f"{site}/accounts/login/")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page).to_have_url(re.compile("/chat/$"))
    sign_out(page)  # and the password alone no longer does
    page.goto(f"{site}/accounts/login/")
    page.get_by_label("Email").fill(visitor.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="One more step")).to_be_visible()
    page.get_by_role("button", name="Use a passkey or security key").click()
    expect(page).to_have_url(re.compile("/chat/$"))


def test_where_passkeys_cannot_work_the_page_says_why(visit: Callable[..., Visitor]) -> None:
    """A bare address has no passkeys"""
    page = visit().tab("/accounts/login/")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("alert")).to_have_text("Passkeys need a secure address: https, or localhost.")
