"""Run a whole site in child processes and visit it with a browser."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect

from config.dev.servers import signal_on_parent_death
from tests.support.paths import ROOT

CHROMIUM = "/usr/bin/chromium"
# Chromium loads these internal pages for every new context, which takes a second.
UNSEEN = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup")
# Chromium only reads the last --disable-features, so Playwright's list is repeated.
TURNED_OFF_BY_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)
START_SECONDS = 180  # five processes on a busy machine
EXPECTED_WHILE_DOWN = re.compile(r"WebSocket connection|ERR_CONNECTION|Failed to load resource")
NO_TIME_TO_ANIMATE = re.compile(r"^Transition was (aborted|skipped)")  # navigation in a busy browser
Theme = Literal["light", "dark"]
THEMES: dict[Theme, dict[str, object]] = {  # including the axe checks
    "light": {},  # every rule
    "dark": {"runOnly": ["color-contrast"]},  # rules that depend on the theme
}


@dataclass
class Site:
    """Run the site's processes; the web process can be killed and restarted on its port."""

    port: int
    stripe_port: int  # for tests that pay; otherwise nothing listens there, and no plan has a price
    environment: dict[str, str]
    logs: Path
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str, command: tuple[str, ...]) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )

    def start_web(self) -> None:
        self.start("web", (sys.executable, "-m", "config.http.web_server", "--port", str(self.port)))
        self._until(self._answers, "the web process does not answer")

    def kill_web(self) -> None:
        self.children["web"].kill()
        self.children["web"].wait()

    def stop(self) -> None:
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            child.wait()

    def wait_for_workers(self) -> None:
        self._until(
            lambda: b"ready." in (self.logs / "turns.log").read_bytes(), "the worker does not get ready"
        )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > deadline or any(
                child.poll() is not None for child in self.children.values()
            ):
                said = "".join(log.read_text(errors="replace")[-2000:] for log in self.logs.iterdir())
                pytest.fail(f"{complaint}:\n{said}")
            time.sleep(0.05)


def launch_chromium(playwright: Playwright) -> Browser:
    off = ",".join((*TURNED_OFF_BY_PLAYWRIGHT, *UNSEEN))
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox", f"--disable-features={off}"]
    )


@dataclass
class Visitor:
    """A person with a separate browser context. Console errors fail the test."""

    site: Site
    context: BrowserContext
    email: str
    scripted: bool
    cookie: str = ""  # of a signed-in session
    complaints: list[str] = field(default_factory=list)
    outage: bool = False  # failed connections are expected while the server is down

    def tab(self, path: str = "/chat/") -> Page:
        page = self.context.new_page()
        page.on("console", self._heard)  # violations of the content security policy arrive here too
        page.on("pageerror", lambda error: self._failed(str(error)))
        page.goto(self.site.url + path)
        self.is_connected(page)
        return page

    def is_connected(self, page: Page) -> None:
        """Wait until the chat page's script runs and its socket is open."""
        if self.scripted and page.locator("#app").count():
            expect(page.locator("html")).to_have_attribute("data-connection", "open")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not (self.outage and EXPECTED_WHILE_DOWN.search(message.text)):
            self.complaints.append(message.text)

    def _failed(self, error: str) -> None:
        if not NO_TIME_TO_ANIMATE.search(error):
            self.complaints.append(error)

    def log_in(self) -> Page:
        """Sign in without the form, which has its own tests."""
        self.context.add_cookies([{"name": "sessionid", "value": self.cookie, "url": self.site.url}])
        return self.tab("/chat/")

    def sign_in(self) -> Page:
        page = self.tab("/accounts/login/")
        page.get_by_label("Email").fill(self.email)
        from tests.support.factories import PASSWORD  # models, which need Django to be set up

        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile("/chat/$"))
        self.is_connected(page)
        return page


def switch_theme(page: Page, scheme: Theme) -> None:
    """Switch the theme and wait for its transitions to end."""
    page.emulate_media(color_scheme=scheme)
    page.evaluate(
        "() => Promise.all(document.getAnimations().filter((one) => one instanceof CSSTransition)"
        ".map((one) => one.finished.catch(() => null)))"
    )


def send_message(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def choose_in_menu(page: Page, act: str) -> None:
    """Choose an item from the menu of the first chat in the list."""
    item = page.locator("#sessions .session").first
    item.hover()
    item.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name=act, exact=True).click()
