"""One person's use of a chat platform, from the first message to unlinking, in a real browser (L27).

Only the platform is a stand-in. The engine runs in this process, so that answers have a price; the browser's driver
keeps an event loop in its own thread.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.core.cache import caches
from playwright.sync_api import Browser, Page, expect, sync_playwright

from billing.models import ModelPrice
from billing.policies import clear_policy_cache
from copilot.models import Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from linking.models import PlatformConversation, PlatformLink, PlatformUserLink
from linking.platforms import registry
from tests.platform_fakes import recorded
from tests.platform_fakes.telegram import Telegram
from tests.support import factories
from tests.support.asgi_server import served
from tests.support.browser import CHROMIUM, NO_TIME_TO_ANIMATE, launch_chromium
from tests.support.platform_chats import chatting, handled
from tests.support.turn_engine import Model, cue, until

ADA, BOB, BOATS = recorded.ADA, recorded.BOB, str(recorded.GROUP)
WIDTHS = (1280, 390)
PATIENT_MS = 20_000

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed")


def priced(dollars: str) -> ScriptedUsage:
    return ScriptedUsage(Tokens(input=100, output=10), cost=dollars)


@dataclass
class Life:
    """Ada with a phone, on which Telegram runs, and a browser; Bob is a member of her group."""

    site: str
    door: str
    telegram: Telegram
    model: Model
    browser: Browser
    theme: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    complaints: list[str] = field(default_factory=list)

    # --- on the phone ---

    def knock(self, update: dict[str, object]) -> None:
        headers = {"content-type": "application/json", "x-telegram-bot-api-secret-token": "door-secret"}
        request = urllib.request.Request(self.site + self.door, json.dumps(update).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def write(self, text: str) -> None:
        number = next(self.numbers)
        self.knock(recorded.telegram_message(text=text, update_id=number, message_id=number, chat_id=ADA))

    def write_in_group(self, text: str, *, user: int = BOB) -> None:
        number = next(self.numbers)
        update = recorded.telegram_group_message(
            text=f"@PilotBot {text}", offset=0, update_id=number, message_id=number, user_id=user
        )
        self.knock(update)

    def press_in_group(self, label: str, *, user: int) -> None:
        number = next(self.numbers)
        update = recorded.telegram_press(
            self.button(label, BOATS),
            update_id=number,
            press_id=f"p{number}",
            user_id=user,
            chat_id=int(BOATS),
        )
        self.knock(update)

    def button(self, label: str, chat: str = str(ADA)) -> str:
        found = [one for sent in self.telegram.shown(chat) for one in sent.buttons if one["text"] == label]
        return (found[-1].get("url") or found[-1].get("callback_data", "")) if found else ""

    def reads(self, words: str, chat: str = str(ADA)) -> None:
        until(lambda: any(words in one.text for one in self.telegram.shown(chat)))

    # --- in the browser ---

    def page(self) -> Page:
        made = self.browser.new_context(color_scheme=self.theme, reduced_motion="reduce").new_page()
        made.set_default_timeout(PATIENT_MS)
        made.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        made.on("pageerror", lambda error: self._complain(str(error)))
        return made

    def _complain(self, error: str) -> None:
        if not NO_TIME_TO_ANIMATE.search(error):
            self.complaints.append(error)

    def look(self, page: Page, name: str) -> None:
        """It fits a phone; pictures are kept where SCREENSHOTS says."""
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 860})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width}"
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"life-{name}-{self.theme}-{width}.png", full_page=True)
        page.set_viewport_size({"width": WIDTHS[0], "height": 860})


@pytest.fixture
def telegram(rig, settings, monkeypatch):
    caches["shared"].clear()
    fake = Telegram()
    fake.admins.add(str(ADA))
    with fake.running(), chatting(settings, monkeypatch, telegram=fake):
        settings.TELEGRAM_BOT_NAME = fake.username
        yield fake


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_person_links_a_group_and_a_chat_talks_decides_pays_and_leaves(telegram, model, settings, theme):
    """A-L27.1: the whole life of a link, by the pages and buttons that people have"""
    factories.ada()
    ModelPrice.objects.create(provider="scripted", model="demo", effective_from="2026-01-01T00:00Z")
    clear_policy_cache()
    adapter = registry.build_adapter("telegram")
    assert adapter is not None
    door = f"/hooks/telegram/{registry.get_webhook_slug(adapter)}/"
    with served(sockets=True) as site, ThreadPoolExecutor(1) as thread:
        settings.SITE_URL, settings.LINK_BASE_URL = site, f"{site}/link"
        thread.submit(_live, site, door, telegram, model, theme).result(100)
    assert telegram.refused == []
    assert not PlatformLink.objects.exists()
    assert not PlatformUserLink.objects.exists()
    assert not PlatformConversation.objects.filter(closed_at=None).exists()
    assert set(Session.objects.values_list("owner__username", "platform")) == {("ada", "telegram")}
    assert Turn.objects.count() == 3
    until(handled)


def _live(site: str, door: str, telegram: Telegram, model: Model, theme: str) -> None:
    with sync_playwright() as playwright:
        chromium = launch_chromium(playwright)
        life = Life(site, door, telegram, model, chromium, theme)
        page = life.page()
        for chapter in CHAPTERS:
            chapter(life, page)
        chromium.close()
    assert life.complaints == []


# --- the chapters ------------------------------------------------------------------------------------


def _link_the_chat(life: Life, page: Page) -> None:
    """An unlinked person is told how to connect; the link leads through the login to the confirmation."""
    life.write("Hello?")
    until(lambda: life.button("Connect"))
    page.goto(life.button("Connect"))
    page.get_by_label("Email").fill("ada@example.com")
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Connect this chat account?")).to_be_visible()
    life.look(page, "claim-chat")
    page.get_by_role("button", name="It's mine, connect it").click()
    expect(page.get_by_role("heading", name="Connected")).to_be_visible()
    life.reads("Connected. You can chat with me here now.")


def _link_the_group(life: Life, page: Page) -> None:
    """Who administers the group asks there, and is written to in private."""
    before = life.button("Connect")
    life.write_in_group("/link", user=ADA)
    until(lambda: life.button("Connect") != before)
    assert not life.button("Connect", BOATS)
    page.goto(life.button("Connect"))
    expect(page.get_by_text("Boats")).to_be_visible()
    life.look(page, "claim-group")
    page.get_by_role("button", name="Connect the server").click()
    expect(page.get_by_role("heading", name="Connected")).to_be_visible()
    page.get_by_role("link", name="Connected chats").first.click()
    page.get_by_text("Limits and permissions").click()
    page.get_by_label("delete files").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()


def _talk(life: Life, page: Page) -> None:
    """In both places; what is said in private can be watched on the web while it is written."""
    life.model.will(ScriptedText("Fair winds, "), cue(1), ScriptedText("Ada."), priced("0.10"))
    page.goto(f"{life.site}/chat/")
    life.write("How is the weather?")
    life.reads("Fair winds,")
    page.locator("#sessions .session").first.click()
    expect(page.locator(".row.answer .prose")).to_contain_text("Fair winds,")
    life.model.give(1)
    expect(page.locator(".row.answer .prose")).to_contain_text("Fair winds, Ada.")
    life.reads("Fair winds, Ada.")
    life.model.will(ScriptedText("Ahoy, Bob."), priced("0.20"))
    life.write_in_group("hello")
    life.reads("Ahoy, Bob.", BOATS)
    chats = page.locator("#sessions .session")
    expect(chats).to_have_count(2)
    expect(chats.locator(".platform")).to_have_text(["Telegram", "Telegram"])
    life.look(page, "chat")


def _decide(life: Life, page: Page) -> None:
    """A member asks for what the owner has allowed; the owner alone says yes, by the group's own button."""
    life.model.will(ScriptedCall("write_file", {"name": "log.txt", "content": "ahoy"}), priced("0.10"))
    life.model.will(
        ScriptedText("Shall I?"), ScriptedCall("delete_file", {"file": "log.txt"}), priced("0.10")
    )
    life.model.will(ScriptedText("The log is gone."), priced("0.10"))
    life.write_in_group("write a log, and burn it")
    until(lambda: life.button("Approve", BOATS))
    page.locator("#sessions .session").filter(has_text="hello").first.click()
    expect(page.locator(".row.user .author")).to_have_text(["Bob", "Bob"])
    expect(page.locator("#approvals .approval")).to_contain_text("Delete file?")
    life.look(page, "approval")
    life.press_in_group("Approve", user=BOB)
    until(lambda: len(life.telegram.answered) == 1)
    assert "Only the person who pays" in life.telegram.answered[0]["text"]
    expect(page.locator("#approvals .approval")).to_be_visible()
    life.press_in_group("Approve", user=ADA)
    life.reads("The log is gone.", BOATS)
    until(lambda: not life.button("Approve", BOATS))
    expect(page.locator("#approvals .approval")).to_have_count(0)
    expect(page.locator(".row.answer .prose").last).to_contain_text("The log is gone.")


def _pay(life: Life, page: Page) -> None:
    """The account's usage includes both places; the group's own share is shown beside its cap."""
    page.goto(f"{life.site}/billing/usage")
    life.look(page, "usage")
    expect(page.get_by_text("60% used").first).to_be_visible()
    page.goto(f"{life.site}/settings/chats/")
    group = page.locator(".chat-item").filter(has_text="Boats")
    expect(group.locator(".chat-facts")).to_contain_text("10%")
    expect(group.locator(".chat-facts")).to_contain_text("2 messages")
    life.look(page, "connected")


def _leave(life: Life, page: Page) -> None:
    """One by the page, one by a word in the chat; then both know nobody."""
    page.on("dialog", lambda dialog: dialog.accept())
    group = page.locator(".chat-item").filter(has_text="Boats")
    group.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("Disconnected.")).to_be_visible()
    life.write("/unlink")
    life.reads("Disconnected.")
    life.write_in_group("still there?")
    life.write("And here?")
    page.reload()
    expect(page.get_by_text("None yet.")).to_have_count(2)
    life.look(page, "left")
    page.goto(f"{life.site}/chat/")
    expect(page.locator("#sessions .session")).to_have_count(2)
    page.locator("#sessions .session").filter(has_text=re.compile("weather")).click()
    expect(page.locator(".row.answer .prose")).to_contain_text("Fair winds, Ada.")


CHAPTERS: tuple[Callable[[Life, Page], None], ...] = (
    _link_the_chat,
    _link_the_group,
    _talk,
    _decide,
    _pay,
    _leave,
)
