"""Plans in a real browser, paid at the fake Stripe (B17)."""

from __future__ import annotations

import itertools
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from tests import stripe_fake
from tests.support.browser import Site, Visitor
from tests.support.paths import ROOT

pytestmark = pytest.mark.browser
Stored = Callable[[Callable[[], object]], object]
PICTURES = ROOT / "test-artifacts" / "screens"
PLAN = "/billing/plan"
MOST_TABS = 80
_hundreds = itertools.count(1, 1_000)


@pytest.fixture
def shop(site: Site, stored: Stored) -> Iterator[stripe_fake.Fake]:
    """Both plans are for sale while the test runs."""
    with stripe_fake.running(site.stripe_port, first_number=next(_hundreds)) as fake:
        prices = {"PRO": fake.price(2_000), "BUSINESS": fake.price(10_000)}
        fake.webhooks.post = lambda body, signature: _post(site, body, signature)
        stored(lambda: _sell(prices))
        yield fake
        _until(
            lambda: stored(_everything_is_applied), every=0.1
        )  # or workers would ask a Stripe that is gone
        stored(lambda: _sell({"PRO": None, "BUSINESS": None}))


def _everything_is_applied() -> bool:
    from billing.models import StripeEvent

    return not StripeEvent.objects.filter(state__in=["RECEIVED", "PROCESSING"]).exists()


def _post(site: Site, body: bytes, signature: str) -> int:
    headers = {"Stripe-Signature": signature, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{site.url}/api/v1/billing/stripe/webhook", body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return int(answer.status)


def _sell(prices: dict[str, str] | dict[str, None]) -> None:
    from billing.models import TierPolicy

    for tier, price in prices.items():
        blurb = {"PRO": "Five times the limits.", "BUSINESS": "For those who live in here."}[tier]
        cents = {"PRO": 2_000, "BUSINESS": 10_000}[tier]
        TierPolicy.objects.filter(tier=tier).update(
            stripe_price_id=price, monthly_cents=cents if price else 0, blurb=blurb if price else ""
        )


def picture(page: Page, name: str) -> None:
    """As people see it: by day and by night, on a desk and in a hand."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=PICTURES / f"plan {name} {theme} {width}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def choose(page: Page, tier: str, says: str) -> None:
    """The card's button, and yes to what the dialog says."""
    press(page, page.get_by_role("button", name=f"Switch to {tier}"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(says)
    press(page, dialog.get_by_role("button", name=f"Switch to {tier}"))


def press(page: Page, wanted: Locator) -> None:
    """By keyboard alone: on from where the focus is until it is there, and Enter."""
    expect(wanted).to_be_enabled()
    for _ in range(MOST_TABS):
        if wanted.evaluate("element => element === document.activeElement"):
            page.keyboard.press("Enter")
            return
        page.keyboard.press("Tab")
    raise AssertionError("no number of tabs leads there")


def usable(page: Page) -> None:
    """Nothing for an automated check of accessibility to find."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_plan_is_bought_raised_lowered_kept_and_ended(
    ada: Visitor, shop: stripe_fake.Fake, stored: Stored
) -> None:
    """B17.c1, B17.c2: FREE → PRO by the payment page → BUSINESS → PRO to come → keep → ended with its period, by keyboard"""
    page = ada.log_in()
    page.goto(ada.site.url + PLAN)
    picture(page, "free")
    usable(page)
    press(page, page.get_by_role("button", name="Switch to Pro"))
    press(page, page.get_by_role("button", name="Pay", exact=True))
    expect(page.locator("#waiting")).to_contain_text("waiting for the payment to be confirmed")
    picture(page, "waiting")
    usable(page)
    shop.webhooks.deliver()
    expect(page.locator(".plan.current")).to_contain_text("Pro")
    expect(page).to_have_url(re.compile(f"{PLAN}$"))

    choose(page, "Business", "You'll be charged")
    expect(page.locator(".plan.current")).to_contain_text("Business")
    expect(page.get_by_text("You're on the Business plan.")).to_be_visible()

    choose(page, "Pro", "You keep your current plan until")
    expect(page.locator("#pending")).to_contain_text("You switch to Pro on")
    expect(page.get_by_role("button", name="Switch to Pro")).to_be_disabled()
    expect(page.locator(".plan.current").get_by_role("button", name="Keep Business")).to_be_visible()
    picture(page, "pending")
    usable(page)
    press(page, page.locator("#pending").get_by_role("button", name="Keep Business"))
    expect(page.locator("#pending")).to_have_count(0)

    choose(page, "Free", "You keep your current plan until")
    expect(page.locator("#pending")).to_contain_text("Your Business plan ends on")
    _portal_and_credits(page, shop)
    shop.advance(days=31)
    shop.webhooks.deliver()
    expect(page.locator(".plan.current")).to_contain_text("Business")  # nothing moves under the reader's eyes
    _until(lambda: page.reload() and page.locator(".plan.current").inner_text().startswith("Free"))


def _portal_and_credits(page: Page, shop: stripe_fake.Fake) -> None:
    """The card and the invoices at Stripe and back; then credit, and where it stands afterwards."""
    press(page, page.get_by_role("button", name="Card and invoices"))
    expect(page.get_by_role("heading", name="Your account with us")).to_be_visible()
    press(page, page.get_by_role("link", name="Back"))
    expect(page.locator("#pending")).to_be_visible()
    page.get_by_label("$10.00").focus()
    page.keyboard.press("ArrowRight")
    press(page, page.get_by_role("button", name="Buy credits"))
    press(page, page.get_by_role("button", name="Pay", exact=True))
    expect(page.locator(".top-up-news")).to_contain_text("waiting for the payment to be confirmed")
    shop.webhooks.deliver()
    expect(page.locator(".balance")).to_have_text("$20.00")
    expect(page.locator(".top-up-news")).to_be_in_viewport()
    press(page, page.get_by_role("navigation", name="Billing").get_by_role("link", name="History"))
    expect(page.get_by_role("region", name="Statement")).to_contain_text("$20.00")
    picture(page, "history")
    usable(page)
    press(page, page.get_by_role("navigation", name="Billing").get_by_role("link", name="Plan"))


def test_a_failed_payment_is_shown_until_it_is_settled(
    ada: Visitor, shop: stripe_fake.Fake, stored: Stored
) -> None:
    """B17.2: an upgrade that is declined, a renewal that fails: the page says what to do, and Keep takes it back"""
    page = ada.log_in()
    page.goto(ada.site.url + PLAN)
    page.get_by_role("button", name="Switch to Pro").click()
    page.get_by_role("button", name="Pay", exact=True).click()
    shop.webhooks.deliver()
    expect(page.locator(".plan.current")).to_contain_text("Pro")
    customer = str(stored(lambda: _customer(ada.email)))
    shop.card("decline", customer)
    choose(page, "Business", "You'll be charged")
    expect(page.get_by_role("heading", name="Invoice")).to_be_visible()  # at Stripe
    page.wait_for_load_state()  # a page that still arrives would abort the next navigation
    page.goto(ada.site.url + PLAN)
    expect(page.get_by_text("Your upgrade is waiting for payment.")).to_be_visible()
    picture(page, "upgrade unpaid")
    page.locator(".plan-news").get_by_role("button", name="Keep Pro").click()
    expect(page.get_by_text("Your upgrade is waiting for payment.")).to_have_count(0)
    shop.advance(days=30, seconds=60)
    shop.webhooks.deliver()
    _until(lambda: page.reload() and page.get_by_text("didn't go through").count() > 0)
    picture(page, "past due")
    page.locator(".plan-news").get_by_role("button", name="Pay now").click()
    expect(page.get_by_role("heading", name="Your account with us")).to_be_visible()


def test_a_second_click_and_a_second_tab_do_no_harm(ada: Visitor, shop: stripe_fake.Fake) -> None:
    """B11.c4: a double click opens one page to pay on; a change made in another tab is shown after a reload"""
    page = ada.log_in()
    page.goto(ada.site.url + PLAN)
    page.get_by_role("button", name="Switch to Pro").dblclick()
    page.get_by_role("button", name="Pay", exact=True).click()
    other = ada.tab(PLAN)
    shop.webhooks.deliver()
    expect(page.locator(".plan.current")).to_contain_text("Pro")
    other.get_by_role("button", name="Switch to Pro").click()  # it does not know yet
    expect(other.get_by_text("You're on the Pro plan.")).to_be_visible()
    assert len([one for one in shop.all("subscription") if one["status"] == "active"]) == 1


def _customer(email: str) -> str | None:
    from billing.models import Account

    return Account.objects.get(user__email=email).stripe_customer_id


def _until(condition: Callable[[], object], *, every: float = 0.0) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(every)
