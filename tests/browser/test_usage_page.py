"""Limits and credits in a real browser (B17)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.support.browser import Visitor, send_message

pytestmark = pytest.mark.browser
Stored = Callable[[Callable[[], object]], object]


def _exhaust(email: str, *, credits_cents: int) -> None:
    from django.contrib.auth.models import User

    from billing import ledger, pricing
    from billing.usage import usage_records

    user_id = User.objects.get(email=email).pk
    if credits_cents:
        ledger.grant_credits(user_id, credits_cents, key=f"grant:{uuid.uuid4()}", reason="Welcome")
    usage_records.record_usage(
        usage_records.UsageCall(
            call_id=uuid.uuid4(), user_id=user_id, occurred_at=datetime.now(UTC), provider="acme",
            model="glow-1", tokens=pricing.TokenCounts(input=1), reported="1.0",
        )
    )  # fmt: skip


def test_a_reached_limit_is_shown_and_gone_after_a_reset(ada: Visitor, stored: Stored) -> None:
    """B17.c1: exhaust → notice → reset → send; the draft is kept, and nothing has to be written twice"""
    page = ada.log_in()
    stored(lambda: _exhaust(ada.email, credits_cents=1_000))
    send_message(page, "Hello there")
    limit = page.locator("#limit")
    expect(limit).to_contain_text("You've reached your daily limit.")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello there")
    limit.get_by_role("button", name="Reset for $5.00").click()
    dialog = page.get_by_role("dialog", name="Reset your daily limit?")
    expect(dialog).to_contain_text("You'll have $5.00 left")
    dialog.get_by_role("button", name="Reset").click()
    expect(limit).to_be_hidden()
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".row.answer .prose").last).not_to_be_empty()
    expect(limit).to_be_hidden()


def test_pages_of_billing_without_payments(ada: Visitor, stored: Stored) -> None:
    """B17.c1: payments off: plans are shown, nothing is sold; use, its reset and the statement are there"""
    stored(lambda: _payments(on=False))
    page = ada.log_in()
    stored(lambda: _exhaust(ada.email, credits_cents=1_000))
    page.locator(".me summary").click()
    page.get_by_role("link", name="Usage and plan").click()
    expect(page.get_by_text("Limit reached")).to_be_visible()
    page.get_by_role("button", name="Reset for $5.00").press("Enter")
    dialog = page.get_by_role("dialog", name="Reset your daily limit?")
    expect(dialog).to_contain_text("You'll have $5.00 left")
    dialog.get_by_role("button", name="Reset for $5.00").press("Enter")
    expect(page.get_by_text("Daily limit reset.")).to_be_visible()
    expect(page.get_by_text("0% used").first).to_be_visible()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("row", name="Reset of the daily limit")).to_contain_text("−$5.00")
    page.get_by_role("navigation", name="Billing").get_by_role("link", name="Plan").click()
    expect(page.get_by_text("Payments aren't set up here.")).to_be_visible()
    expect(page.locator(".plan.current")).to_contain_text("Your plan")
    stored(lambda: _payments(on=True))


def test_what_was_used_is_shown_and_forgiven_by_staff(ada: Visitor, stored: Stored) -> None:
    """B17.1, B18.1: a bar each for day and week; staff reset both in their pages, with a reason, and the bars are empty"""
    page = ada.log_in()
    stored(lambda: _exhaust(ada.email, credits_cents=0))
    page.goto(f"{ada.site.url}/billing/usage")
    expect(page.get_by_role("progressbar", name="Today")).to_have_attribute("value", "100.0")
    expect(page.get_by_role("progressbar", name="This week")).to_have_attribute("value", "20.0")
    expect(page.get_by_text("You don't have enough credits to reset it.")).to_be_visible()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    stored(lambda: _made_staff(ada.email))
    page.goto(f"{ada.site.url}/admin/billing/account/?q={ada.email}")
    page.get_by_role("checkbox", name="Select all objects").check()
    page.get_by_label("Action:").select_option(label="Reset day and week…")
    page.get_by_role("button", name="Go").click()
    page.get_by_label("Reason:").fill("A mistake of ours")
    page.get_by_role("button", name="Reset day and week").click()
    expect(page.get_by_text("Done for 1 of 1.")).to_be_visible()
    page.goto(f"{ada.site.url}/billing/usage")
    expect(page.get_by_text("0% used")).to_have_count(2)


def _made_staff(email: str) -> None:
    from django.contrib.auth.models import User

    User.objects.filter(email=email).update(is_staff=True, is_superuser=True)


def _payments(*, on: bool) -> None:
    from billing.models import LimitPolicy

    LimitPolicy.objects.update(payments_enabled=on)
