"""A person is asked before something happens, in a real browser (W2.4, A11, A33.c1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import Visitor, send_message

pytestmark = pytest.mark.browser

ASK = "Please delete a file"


def card(page: Page) -> Locator:
    return page.locator("#approvals .approval")


def asked(page: Page) -> Locator:
    send_message(page, ASK)
    expect(card(page)).to_contain_text("Delete file?")
    return card(page)


def test_a_call_waits_survives_a_reload_and_runs_once_it_is_approved(ada: Visitor) -> None:
    """W2.4, A33.c1: calls that need no approval have run; the card, the sidebar and a reload show what waits"""
    page = ada.log_in()
    asked(page)
    expect(page.locator(".row.tool[data-state=done]")).to_contain_text("Wrote a file")
    expect(page.locator("#sessions [aria-current=page] .dot")).to_have_text("needs you")
    expect(page.locator(".row.tool").last).to_contain_text("waiting")
    page.reload()
    expect(page.locator(".row.tool").last).to_contain_text("waiting")
    expect(card(page).get_by_label("file")).to_have_value("demo-notes.md")
    card(page).get_by_role("button", name="Approve", exact=True).click()
    expect(card(page)).to_have_count(0)
    expect(page.locator(".row.answer .prose").last).to_contain_text("is in the trash")
    expect(page.locator(".row.tool[data-state=done]")).to_have_count(2)


def test_a_rejection_carries_its_reason(ada: Visitor) -> None:
    """W2.4, A11.7"""
    page = ada.log_in()
    asked(page).get_by_label("Reason for rejecting").fill("I still need it")
    card(page).get_by_role("button", name="Reject").click()
    expect(page.locator(".row.answer .prose").last).to_contain_text("I still need it")


def test_enter_means_the_button_beside_its_field(ada: Visitor) -> None:
    """W2.4: who writes a reason and presses Enter has not approved; the cap's Enter allows up to it"""
    page = ada.log_in()
    asked(page).get_by_label("Reason for rejecting").fill("Not this one")
    page.keyboard.press("Enter")
    expect(card(page)).to_have_count(0)
    expect(page.locator(".row.answer .prose").last).to_contain_text("Not this one")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    asked(page).get_by_text("Always allow in this chat").click()
    card(page).get_by_label("Spending limit in US dollars").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("#auto-approval")).to_contain_text("up to $2.00")


def test_arguments_can_be_changed_and_a_wrong_change_is_explained(ada: Visitor) -> None:
    """W2.4, A11.6: refused changes leave the card open"""
    page = ada.log_in()
    field = asked(page).get_by_label("file")
    field.fill("")
    card(page).get_by_role("button", name="Approve", exact=True).click()
    expect(card(page).get_by_role("alert")).to_contain_text("file")
    field.fill("another.md")
    card(page).get_by_role("button", name="Approve", exact=True).click()
    expect(page.locator(".row.answer .prose").last).to_contain_text("The user changed the arguments")


def test_a_chat_can_be_allowed_to_act_without_asking_and_stopped_again(ada: Visitor) -> None:
    """W2.4, A11.11: the next call runs at once; switched off, it asks again"""
    page = ada.log_in()
    asked(page).get_by_text("Always allow in this chat").click()
    card(page).get_by_label("Spending limit in US dollars").fill("1.50")
    card(page).get_by_role("button", name="Allow and approve").click()
    expect(page.locator("#auto-approval")).to_contain_text("up to $1.50")
    expect(page.locator(".row.answer .prose").last).to_contain_text("is in the trash")
    send_message(page, ASK)
    expect(page.locator(".row.tool[data-state=done]")).to_have_count(4)
    expect(card(page)).to_have_count(0)
    page.locator("#auto-approval").get_by_role("button", name="Turn off").click()
    expect(page.locator("#auto-approval")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    asked(page)


def test_a_call_that_always_asks_cannot_be_allowed_for_good(
    ada: Visitor, stored: Callable[[Callable[[], object]], object]
) -> None:
    """A11.11: the next one would ask again"""
    from copilot.models import Approval

    page = ada.log_in()
    expect(asked(page).get_by_text("Always allow in this chat")).to_be_visible()
    stored(lambda: Approval.objects.filter(state="requested").update(manual_only=True))
    page.reload()
    expect(card(page).get_by_role("button", name="Approve", exact=True)).to_be_visible()
    expect(card(page).get_by_text("Always allow in this chat")).to_be_hidden()


def test_going_on_instead_leaves_the_call_undone(ada: Visitor) -> None:
    """A11.8"""
    page = ada.log_in()
    asked(page)
    send_message(page, "Hello there")
    expect(card(page)).to_have_count(0)
    expect(page.locator(".row.answer .prose").last).to_contain_text("Hello there")
