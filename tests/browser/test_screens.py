"""Every page as people see it: nothing serious for axe, nothing sideways, and a picture of each is kept (W4.1, W4.2, W4.5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser import THEMES, Visitor, switch_theme
from tests.support.paths import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.looks, pytest.mark.timeout(300)]

PICTURES = ROOT / "test-artifacts" / "screens"
WIDTHS = {"wide": 1280, "phone": 390}
EXTREMES = (360, 2560)
SERIOUS = {"serious", "critical"}
FOR_ALL = {
    "home": "/",
    "login": "/accounts/login/",
    "signup": "/accounts/signup/",
    "reset": "/accounts/password/reset/",
    "reset done": "/accounts/password/reset/done/",
    "missing": "/nowhere/",
}
FOR_ADA = {
    "empty": "/chat/",
    "archived": "/chat/archived/",
    "trash": "/chat/trash/",
    "files": "/files/",
    "shared links": "/settings/shares/",
    "usage": "/billing/usage",
    "plan": "/billing/plan",
    "history": "/billing/history",
    "agents": "/agents/",
    "agent": "/agents/new/",
    "settings": "/settings/",
    "memories": "/settings/memories/",
    "schedules": "/settings/schedules/",
    "tools": "/settings/tools/",
    "mcp": "/settings/mcp/",
    "keys": "/settings/keys/",
    "chats": "/settings/chats/",
    "data": "/settings/account/",
    "delete account": "/settings/account/delete/",
    "password": "/accounts/password/change/",
    "email": "/accounts/email/",
    "logout": "/accounts/logout/",
}


def rich_chat(email: str) -> str:
    """A bit of everything that a transcript can hold."""
    from django.contrib.auth.models import User

    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="Duplicate files in the photo archive")
    turn = factories.turn(session, "succeeded")
    factories.message(session, content="Which photos are stored twice?", turn=turn)
    factories.message(session, "reasoning", content="Hashes first.", turn=turn)
    for number, tool in enumerate(("bash_exec", "write_file")):
        call = {"tool": tool, "arguments": {"command": "sha256sum *.jpg"}}
        factories.message(session, "tool_call", call_id=f"c{number}", data=call, turn=turn)
        preview = '{"exit_code": 0, "stderr": "", "stdout": "9f2a a.jpg"}'
        result = {"tool": tool, "success": True, "preview": preview, "duration_ms": 820, "truncated": False}
        factories.message(session, "tool_result", call_id=f"c{number}", data=result, turn=turn)
    text = "**37 copies.**\n\n| Folder | Size |\n|---|---:|\n| `2019` | 30 MB |\n\n```python\nprint(1)\n```\n"
    factories.message(session, "assistant", content=text, turn=turn)
    failed = factories.turn(session, "failed", failure_code="overloaded")
    factories.message(session, content="Delete them.", turn=failed)
    factories.message(session, "notice", data={"code": "overloaded", "details": "529"}, turn=failed)
    return str(session.pk)


def belongings(email: str) -> str:
    """One of everything that the pages around the chat list, with words that are long for it."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from copilot.accounts import api_keys
    from copilot.agents import services as agents
    from copilot.chat.permissions import UNRESTRICTED
    from copilot.files import services as files
    from copilot.memories import services as memories
    from copilot.models import ExportJob, McpServer, Schedule
    from copilot.sharing import services as sharing
    from tests.support import link_factories

    ada, long = User.objects.get(email=email), "https://harbour.example/" + "very-long-path/" * 12
    for text in ("Likes ships.", f"Looks at {long} every morning."):
        memories.add_memory(ada.pk, text)
    agents.create_agent(
        ada.pk, agents.AgentDraft(name="Harbour mate " * 6, instructions="Help.", description=long)
    )
    given = {
        "owner": ada,
        "timezone": "America/Argentina/ComodRivadavia",
        "permissions": UNRESTRICTED.to_json(),
    }
    Schedule.objects.create(name="Tides", prompt=long, cron="0 9 * * *", next_run=timezone.now(), **given)
    off = f"It failed 5 times in a row. Last error: {long}"[:200]
    Schedule.objects.create(prompt="Sail.", cron="*/15 8-18 * * 1-5", disabled_reason=off, **given)
    McpServer.objects.create(owner=ada, name="tides", transport="http", url=long, last_error="No answer.")
    api_keys.create_api_key(
        ada, name="A program of the harbour master's", scopes=("read", "chat", "manage", "billing")
    )
    link_factories.server_link(ada, server_name="The Quay " * 9, state="paused")
    link_factories.user_link(ada)
    file = files.store_file(ada.pk, name=f"{'report-' * 20}.txt", content=b"calm", source="upload")
    sharing.publish_file(ada.pk, file.pk, sharing.ShareTerms(password="open sesame"))
    ExportJob.objects.create(owner=ada, format="json", state="failed", error="zip_too_large")
    return ""


def look(page: Page, name: str) -> list[str]:
    """What is wrong with the page as it stands, in one theme and the other; its pictures are kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    for kind, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 860})
        for theme in THEMES:
            switch_theme(page, theme)
            picture = f"{name.replace(' ', '-')}-{kind}-{theme}.png"
            page.screenshot(path=PICTURES / picture, animations="disabled")
    for width in (*EXTREMES, WIDTHS["wide"]):
        page.set_viewport_size({"width": width, "height": 860})
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{name}: scrolls sideways at {width}")
    for theme, rules in THEMES.items():
        switch_theme(page, theme)
        for found in Axe().run(page, options=rules).response["violations"]:
            if found["impact"] in SERIOUS:
                targets = [node["target"] for node in found["nodes"]]
                wrong.append(f"{name}, {theme}: {found['id']} {targets[:3]}")
    return wrong


def test_every_page_is_sound_in_both_themes(
    visit: Callable[..., Visitor], stored: Callable[[Callable[[], str]], str]
) -> None:
    """W4.1, W4.2, W4.5: axe finds nothing serious, nothing scrolls sideways"""
    ada = visit(reduced_motion="reduce")
    ada.outage = True  # one page is not there, and says so in the console
    wrong: list[str] = []
    page = ada.tab("/")
    for name, path in FOR_ALL.items():
        page.goto(ada.site.url + path)
        wrong += look(page, name)
    page = ada.log_in()
    stored(lambda: belongings(ada.email))
    for name, path in FOR_ADA.items():
        page.goto(ada.site.url + path)
        wrong += look(page, name)
    page.goto(f"{ada.site.url}/chat/{stored(lambda: rich_chat(ada.email))}/")
    ada.is_connected(page)
    wrong += look(page, "chat")
    for name, opened in OPENED.items():
        with opened(page):
            wrong += look(page, name)
    assert wrong == []


@contextmanager
def steps(page: Page) -> Iterator[None]:
    page.get_by_role("button", name=re.compile("^Show 3 steps")).click()
    page.locator(".row.tool summary").first.click()
    yield
    page.get_by_role("button", name=re.compile("^Hide 3 steps")).click()


@contextmanager
def palette(page: Page) -> Iterator[None]:
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search chats, pages and actions").fill("photo")
    expect(page.locator("#palette mark").first).to_be_visible()
    yield
    page.keyboard.press("Escape")


@contextmanager
def this_chat(page: Page) -> Iterator[None]:
    page.get_by_role("button", name="Instructions and tools of this chat").click()
    expect(page.get_by_label("Instructions", exact=True)).to_be_enabled()
    yield
    page.keyboard.press("Escape")


@contextmanager
def account_menu(page: Page) -> Iterator[None]:
    page.locator(".me summary").click()
    yield
    page.locator(".me summary").click()


OPENED = {"steps": steps, "palette": palette, "this chat": this_chat, "menu": account_menu}
