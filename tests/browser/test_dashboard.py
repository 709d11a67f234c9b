"""The dashboard in a real browser: somebody on call finds a stuck turn, and makes it run (D13)."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Page, Route, expect

from tests.support.browser import THEMES, Site, Visitor, switch_theme

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]  # five processes start first
STUCK = "/admin/diagnostics/stuck-queued/"
NAUGHTY = "<img src=x onerror=alert(1)>"
Stored = Callable[[Callable[[], object]], object]


@pytest.fixture
def no_sweep(site: Site) -> Iterator[None]:
    """The reaper would send a lost turn again within seconds, before anybody could look at it."""
    client = redis.Redis.from_url(site.environment["REDIS_URL"])
    leader = f"{site.environment.get('REDIS_KEY_PREFIX', 'ph')}:leader:reaper"
    client.hset(leader, mapping={"holder": "test", "rank": -1})
    client.persist(leader)
    yield
    client.delete(leader)
    client.close()


@pytest.fixture
def grace(visit: Callable[..., Visitor], stored: Stored) -> Visitor:
    visitor = visit(viewport={"width": 1280, "height": 900})
    stored(lambda: _promote(visitor.email))
    visitor.log_in()
    return visitor


def _promote(email: str) -> None:
    from django.contrib.auth.models import User

    User.objects.filter(email=email).update(is_staff=True, is_superuser=True)


def _failed_turn(email: str) -> None:
    """A list with a row is wider than an empty one."""
    from django.contrib.auth.models import User

    from tests.support import factories

    factories.turn(factories.session(User.objects.get(email=email)), "failed")


def lost_turns(email: str, number: int) -> list[str]:
    """Turns that are queued for two hours, because the message that should have woken a worker was lost."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from copilot import tasks
    from copilot.chat import admission
    from copilot.chat.commands import SendMessage
    from copilot.chat.permissions import UNRESTRICTED
    from copilot.models import Agent, AgentVersion, Session, Turn

    owner = User.objects.get(email=email)
    agent = Agent.objects.create(owner=owner, name=NAUGHTY)
    version = AgentVersion.objects.create(agent=agent, number=1, name=NAUGHTY, instructions="Be kind.")
    ids = []
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(tasks.run_turn, "apply_async", lambda *args, **options: None)
    for _ in range(number):
        session = Session.objects.create(owner=owner, agent_version=version)
        message = SendMessage(
            session_id=session.pk, user_id=owner.pk, text="Hello", origin="web", permissions=UNRESTRICTED
        )
        ids.append(str(admission.submit_message(message).turn_id))
    monkeypatch.undo()
    long_ago = timezone.now() - timedelta(hours=2)
    Turn.objects.filter(pk__in=ids).update(queued_at=long_ago, created_at=long_ago, dispatched_at=long_ago)
    return ids


def status(turn_id: str) -> str:
    from copilot.models import Turn

    return str(Turn.objects.values_list("status", flat=True).get(pk=uuid.UUID(turn_id)))


def picture(page: Page, name: str) -> None:
    """Take screenshots for people to look at, only where a directory is named."""
    if directory := os.environ.get("DASHBOARD_PICTURES"):
        page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)


def test_a_stuck_turn_is_found_looked_at_requeued_and_runs(grace: Visitor, stored: Stored, no_sweep: None):
    """A-D13.1, A-D13.2, A-D13.3: selection survives a refresh, a 503 only leaves a banner, a name is text"""
    from tests.support.turn_engine import until  # models, which need Django to be set up

    ids = stored(lambda: lost_turns(grace.email, 4))
    assert isinstance(ids, list)
    page = grace.tab("/admin/diagnostics/")
    finding = page.get_by_text("Executions stuck in the queue").first
    with contextlib.suppress(AssertionError):
        expect(finding).to_be_visible(timeout=6_000)  # a summary that another page asked for is kept for 5 s
    if not finding.is_visible():
        page.reload()
    expect(finding).to_be_visible()
    picture(page, "overview-light")
    page.locator(".dx-finding", has_text="stuck_queue").get_by_role("link", name="Look at it").click()
    rows = page.locator("#dx-live tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text(NAUGHTY)
    assert page.locator("#dx-live img").count() == 0
    picture(page, "stuck-light")

    for row in range(3):
        rows.nth(row).get_by_role("checkbox").check()
    expect(page.locator("#dx-selected")).to_have_text("3 selected")
    expect(page.locator("#dx-fresh-words")).to_contain_text("paused: rows are selected")
    refresh(page)
    expect(page.locator("#dx-fresh-words")).to_contain_text("updated now")
    assert page.locator('tbody input[name="ids"]:checked').count() == 3
    rows.first.get_by_role("button", name="Copy the id").click()
    expect(rows.first.get_by_role("button", name="Copy the id")).to_have_attribute("title", "Copied")

    grace.outage = True
    page.route("**/stuck-queued/**", lambda route: _refuse(route))
    refresh(page)
    expect(page.locator("#dx-banner")).to_contain_text("the server answered 503")
    expect(rows).to_have_count(4)
    picture(page, "banner-light")
    page.unroute("**/stuck-queued/**")
    refresh(page)
    expect(page.locator("#dx-banner")).to_be_hidden()
    grace.outage = False

    page.get_by_role("group", name="Actions").get_by_role("button", name="Requeue", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 executions will be changed")
    picture(page, "dialog-light")
    dialog.get_by_label("Reason").fill("their task was lost")
    dialog.get_by_role("button", name="Requeue").click()
    expect(page.locator("#dx-toasts")).to_contain_text("Requeue: 3 changed")
    expect(page.locator(".dx-tabs a", has_text="Stuck queued").locator(".dx-count")).to_have_text("1")
    picture(page, "toast-light")
    until(lambda: sum(stored(lambda one=one: status(one)) == "succeeded" for one in ids) == 3)
    assert sorted(str(stored(lambda one=one: status(one))) for one in ids) == ["queued", *["succeeded"] * 3]


def refresh(page: Page) -> None:
    """One that has begun goes first: a second click meanwhile would do nothing."""
    with page.expect_response(lambda answer: "/stuck-queued/" in answer.url):
        page.get_by_role("button", name="Refresh").click()


def _refuse(route: Route) -> None:
    route.fulfill(status=503, body="away")


@pytest.mark.looks
def test_every_tab_is_usable_on_a_phone_and_by_a_screen_reader(visit: Callable[..., Visitor], stored: Stored):
    """D13: no page is wider than the screen, nothing fails the rules of accessibility"""
    from axe_playwright_python.sync_playwright import Axe

    from diagnostics.dashboard.tabs import TABS

    grace = visit(viewport={"width": 390, "height": 844})
    stored(lambda: _promote(grace.email))
    stored(lambda: _failed_turn(grace.email))
    grace.log_in()
    page = grace.tab("/admin/diagnostics/")
    for tab in TABS:
        page.goto(f"{grace.site.url}/admin/diagnostics/{tab.slug}{'/' if tab.slug else ''}")
        expect(page.get_by_role("heading", level=1).filter(has_text=tab.title)).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 1, f"{tab.slug} is {wide} px too wide"
        for scheme, rules in THEMES.items():
            switch_theme(page, scheme)
            found = Axe().run(page, context="#diagnostics", options=rules).response["violations"]
            assert [(tab.slug, scheme, one["id"], one["nodes"][0]["html"]) for one in found] == []
            picture(page, f"phone-{scheme}-{tab.slug or 'overview'}")
    assert re.search(r"Diagnostics", page.title())
