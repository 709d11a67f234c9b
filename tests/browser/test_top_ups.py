"""Credit bought in a real browser, on the stand-in's pages, told by webhooks that it sends itself (B17)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests import stripe_fake
from tests.support.browser import Site, Visitor
from tests.support.paths import ROOT

pytestmark = pytest.mark.browser
PICTURES = ROOT / "test-artifacts" / "screens"


@pytest.fixture
def shop(site: Site) -> Iterator[stripe_fake.Fake]:
    with stripe_fake.running(site.stripe_port) as fake, fake.delivering_to(site.url):
        yield fake


def picture(page: Page, name: str) -> None:
    """As people see it: by day and by night, on a desk and in a hand."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=PICTURES / f"top-up {name} {theme} {width}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_credit_is_bought_after_a_decline_or_left_alone(ada: Visitor, shop: stripe_fake.Fake) -> None:
    """B17.c1: top-up through the fake's checkout page; the page waits for the webhook and then shows the credit."""
    page = ada.log_in()
    page.goto(f"{ada.site.url}/billing/plan")
    expect(page.locator(".balance")).to_have_text("$0.00")
    picture(page, "form")
    assert Axe().run(page).violations_count == 0
    page.locator(".amount", has_text="$20.00").click()
    page.get_by_label("Save my card for automatic top-ups").check()
    page.get_by_role("button", name="Buy credits").click()
    expect(page.locator(".sum")).to_have_text("20.00 USD")  # at Stripe
    picture(page, "checkout")
    ada.outage = True  # its page says 402, which the console repeats
    page.get_by_role("button", name="Decline").click()
    expect(page.get_by_role("alert")).to_have_text("Your card was declined.")
    ada.outage = False
    page.get_by_role("button", name="Pay").click()
    expect(page.get_by_text("$20.00 added to your credits.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/billing/plan\?top_up="))
    expect(page.locator(".balance")).to_have_text("$20.00")
    _left_at_the_till(page)
    _automatic(page)


def _left_at_the_till(page: Page) -> None:
    page.get_by_label("Or another amount").fill("7.50")
    page.get_by_label("Or another amount").press("Enter")
    expect(page.locator(".sum")).to_have_text("7.50 USD")
    page.get_by_role("button", name="Cancel").click()
    expect(page).to_have_url(re.compile(r"/billing/plan$"))


def _automatic(page: Page) -> None:
    page.locator(".automatic summary").click()
    page.get_by_label("When my balance is below").fill("5")
    page.get_by_label("Buy", exact=True).fill("15")
    page.get_by_label("I agree that my saved card is charged").check()
    page.get_by_role("button", name="Turn on").click()
    expect(
        page.get_by_text("We buy $15.00 in credits whenever your balance drops below $5.00.")
    ).to_be_visible()
    picture(page, "automatic")
