"""A chat is connected, seen by other users and disconnected, in a real browser (L6, L8)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser import THEMES, Visitor, switch_theme

pytestmark = pytest.mark.browser
WIDTHS = (1280, 390)
Stored = Callable[[Callable[[], str]], str]


def seen(page: Page, name: str) -> list[str]:
    """What axe finds serious in both themes, and whether it scrolls sideways; pictures are kept where SCREENSHOTS says."""
    wrong: list[str] = []
    for theme, rules in THEMES.items():
        switch_theme(page, theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 860})
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{name}: scrolls sideways at {width}")
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"{name}-{theme}-{width}.png", full_page=True)
        for found in Axe().run(page, options=rules).response["violations"]:
            if found["impact"] in {"serious", "critical"}:
                wrong.append(
                    f"{name}, {theme}: {found['id']} {[node['target'] for node in found['nodes']][:3]}"
                )
    return wrong


def server_token(server: str, name: str = "The Quay") -> str:
    from tests.support import link_factories

    return link_factories.server_token(server, subject_name=name).token


def user_token(person: str) -> str:
    from tests.support import link_factories

    return link_factories.user_token(person, platform="telegram").token


def expire(token: str) -> str:
    from linking.links import tokens
    from linking.models import LinkToken

    LinkToken.objects.filter(digest=tokens.hash_token(token)).update(expires_at="2020-01-01T00:00Z")
    return token


def claim_for(email: str, server: str) -> str:
    from django.contrib.auth.models import User

    from tests.support import link_factories

    return str(link_factories.server_link(User.objects.get(email=email), server_id=server).pk)


def log_in_on_the_way(page: Page, email: str) -> None:
    from tests.support.factories import PASSWORD

    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_a_server_is_connected_limited_and_let_go(visit: Callable[..., Visitor], stored: Stored) -> None:
    """L6, L8: through the login, which leads back; caps are chosen on the way"""
    ada, server = visit(reduced_motion="reduce"), f"s-{uuid4()}"
    token = stored(lambda: server_token(server, "<b>The Quay</b> and all who work there by night"))
    page = ada.tab(f"/link/{token}")
    expect(page.get_by_text("The Quay")).to_have_count(0)
    log_in_on_the_way(page, ada.email)
    expect(page.get_by_role("heading", name="Connect this server?")).to_be_visible()
    wrong = seen(page, "claim-server")
    page.get_by_label("Limit per day").select_option("20")
    page.get_by_role("button", name="Connect the server").click()
    expect(page.get_by_role("heading", name="Connected")).to_be_visible()
    wrong += seen(page, "claim-done")
    page.goto(f"{ada.site.url}/link/{stored(lambda: user_token(f'p-{uuid4()}'))}")
    wrong += seen(page, "claim-user")
    page.get_by_role("button", name="It's mine, connect it").click()
    page.get_by_role("link", name="Connected chats").first.click()
    expect(page.get_by_role("heading", name=re.compile("The Quay"))).to_be_visible()
    page.get_by_text("Limits and permissions").click()
    expect(page.get_by_label("Dollars per day")).to_have_value("20.00")
    page.get_by_label("Answer only when mentioned").uncheck()
    page.get_by_label("read web pages").check()
    wrong += seen(page, "connected")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    wrong += seen(page, "paused")
    assert wrong == []


def test_links_that_cannot_be_used_say_what_to_do(visit: Callable[..., Visitor], stored: Stored) -> None:
    """L6: expired, somebody else's, unknown, cancelled, and used by another"""
    ada, bob = visit(reduced_motion="reduce"), visit()
    ada.outage = bob.outage = True  # pages that are gone say so in the console
    page, wrong = ada.log_in(), []
    late = stored(lambda: expire(server_token(f"s-{uuid4()}")))
    page.goto(f"{ada.site.url}/link/{late}")
    expect(page.get_by_role("heading", name="This link has expired")).to_be_visible()
    wrong += seen(page, "gone")
    taken = f"s-{uuid4()}"
    token = stored(lambda: server_token(taken))
    stored(lambda: claim_for(bob.email, taken))
    page.goto(f"{ada.site.url}/link/{token}")
    expect(page.get_by_role("heading", name="Already connected")).to_be_visible()
    wrong += seen(page, "taken")
    page.goto(f"{ada.site.url}/link/{'A' * 43}")
    expect(page.get_by_role("heading", name="Link not found")).to_be_visible()
    token = stored(lambda: user_token(f"p-{uuid4()}"))
    page.goto(f"{ada.site.url}/link/{token}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Nothing was connected")).to_be_visible()
    wrong += seen(page, "cancelled")
    token = stored(lambda: user_token(f"p-{uuid4()}"))
    page.goto(f"{ada.site.url}/link/{token}")
    page.get_by_role("button", name="It's mine, connect it").click()
    expect(page.get_by_role("heading", name="Connected")).to_be_visible()
    others = bob.log_in()
    others.goto(f"{bob.site.url}/link/{token}")
    expect(others.get_by_role("heading", name="This link has expired")).to_be_visible()
    assert wrong == []
