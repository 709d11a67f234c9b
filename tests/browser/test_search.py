"""Finding what was said, and keeping the list of chats in order (W2.9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.support.browser import Visitor, choose_in_menu, send_message

pytestmark = pytest.mark.browser


def long_chat(email: str) -> str:
    """A hundred and twenty lines, one of which speaks of a whale."""
    from django.contrib.auth.models import User

    from copilot.chat import search
    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="A long voyage")
    turn = factories.turn(session, "succeeded")
    for number in range(120):
        words = " where we saw a whale" if number == 10 else ""
        factories.message(
            session, "user" if number % 2 else "assistant", content=f"Day {number}{words}", turn=turn
        )
    search.index_session(session.pk)
    return str(session.pk)


def test_ctrl_k_finds_a_message_and_leads_to_it(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.9, W1.3: found while typing, marked, and shown in its place however old it is"""
    stored(lambda: long_chat(ada.email))
    page = ada.log_in()
    page.keyboard.press("Control+k")
    search = page.get_by_role("combobox", name="Search chats, pages and actions")
    expect(search).to_be_focused()
    search.fill("whal")
    hit = page.get_by_role("option", name=re.compile("where we saw a whale"))
    expect(hit.locator("mark")).to_have_text("whale")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Day 10 where we saw a whale")).to_be_in_viewport()
    expect(page.get_by_text("You're viewing older messages.")).to_be_visible()
    page.get_by_role("link", name="Jump to latest").click()
    expect(page.get_by_text("Day 119")).to_be_in_viewport()


def test_a_chat_is_found_by_its_title_and_nothing_says_so(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.9"""
    session = stored(lambda: long_chat(ada.email))
    page = ada.log_in()
    page.get_by_role("button", name="Search").click()
    search = page.get_by_role("combobox", name="Search chats, pages and actions")
    search.fill("zzz")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    search.fill("voyage")
    page.get_by_role("option", name=re.compile("A long voyage")).click()
    expect(page).to_have_url(re.compile(session))


def test_a_chat_is_pinned_archived_and_brought_back_in_every_tab(ada: Visitor) -> None:
    """W2.9, W2.10"""
    page = ada.log_in()
    send_message(page, "Hello")
    expect(page.locator("#announcer")).to_have_text("Answer finished.")
    other = ada.tab()
    choose_in_menu(page, "Pin")
    for tab in (page, other):
        expect(tab.locator("#sessions h2")).to_have_text(["Pinned"])
    other.reload()
    choose_in_menu(other, "Unpin")
    expect(page.locator("#sessions h2")).to_have_text(["Today"])
    choose_in_menu(other, "Archive")
    expect(other.locator("#sessions .session")).to_have_count(0)
    expect(page).to_have_url(re.compile("/chat/$"))
    other.goto(ada.site.url + "/chat/archived/")
    other.get_by_role("button", name="Restore").click()
    expect(other.get_by_text("No archived chats.")).to_be_visible()
    expect(page.locator("#sessions .session")).to_have_count(1)


def test_an_unpinned_chat_moves_back_to_its_day(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.9: it is no newer for having been pinned"""

    def old_ones() -> str:
        from django.contrib.auth.models import User

        from copilot.models import Session
        from tests.support import factories

        owner = User.objects.get(email=ada.email)
        for days, title in enumerate(("today's", "yesterday's", "an older one")):
            session = factories.session(owner, title=title)
            when = timezone.now() - timedelta(days=3 * days if days > 1 else days)
            Session.objects.filter(pk=session.pk).update(active_at=when)
        return ""

    page = ada.log_in()
    stored(old_ones)
    page.reload()
    ada.is_connected(page)
    before = page.locator("#sessions").inner_text()
    for place in (1, 2):
        item = page.locator("#sessions .session").nth(place)
        title = item.locator("[data-slot=title]").inner_text()
        for act in ("Pin", "Unpin"):
            item.hover()
            item.get_by_role("button", name="More").click()
            page.get_by_role("menuitem", name=act, exact=True).click()
            item = page.locator("#sessions .session", has_text=title)
            expect(item).to_have_attribute("data-pinned", "true" if act == "Pin" else "false")
        assert page.locator("#sessions").inner_text() == before


def test_older_chats_load_on_scrolling_and_a_restored_one_is_under_its_day(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.9: however many days and pages the list has"""

    def many() -> str:
        from django.contrib.auth.models import User

        from copilot.models import Session
        from tests.support import factories

        owner, now = User.objects.get(email=ada.email), timezone.now()
        for number in range(90):
            session = factories.session(owner, title=f"Chat {number}")
            when = now - timedelta(days=(0, 3, 10, 40, 80, 120)[number // 15], seconds=number)
            Session.objects.filter(pk=session.pk).update(active_at=when)
        away = Session.objects.get(owner=owner, title="Chat 40")
        Session.objects.filter(pk=away.pk).update(archived_at=now)
        return str(away.pk)

    page = ada.log_in()
    away = stored(many)
    page.reload()
    ada.is_connected(page)
    sessions = page.locator("#sessions .session")
    grown = "count => document.querySelectorAll('#sessions .session').length > count"
    while page.locator("#sessions").get_attribute("data-more"):
        count = sessions.count()
        sessions.last.scroll_into_view_if_needed()
        page.wait_for_function(grown, arg=count)
    expect(sessions).to_have_count(89)
    assert page.locator("#sessions h2").count() == 6
    ada.tab("/chat/archived/").get_by_role("button", name="Restore").click()
    expect(sessions).to_have_count(90)
    section = page.locator("#sessions section", has=page.locator(f'[data-session="{away}"]'))
    expect(section.locator("h2")).to_have_text("Previous 30 days")
    expect(section.locator(".session")).to_have_count(15)


def test_ctrl_k_finds_pages_and_actions(ada: Visitor) -> None:
    page = ada.log_in()
    page.keyboard.press("Control+k")
    search = page.get_by_role("combobox", name="Search chats, pages and actions")
    search.fill("dark")
    expect(page.get_by_role("group", name="Actions").get_by_role("option")).to_have_text(["Theme: Dark"])
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Control+k")
    search.fill("sched")
    expect(page.get_by_role("group", name="Go to").get_by_role("option")).to_have_text(["Scheduled tasks"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings/schedules/")
