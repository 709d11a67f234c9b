"""A whole site in child processes and a real browser in front of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    expect,
    sync_playwright,
)

from config.dev.run import WORKERS
from config.dev.servers import find_free_port, signal_on_parent_death

CHROMIUM = "/usr/bin/chromium"
# Pages of the browser's own, behind its address bar: each new person would have two of them loaded, unseen, at a second's work.
UNSEEN = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup")
# Chromium hears the last list alone, so what Playwright turns off is named again.
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
ROOT = Path(__file__).resolve().parents[2]
WORDS_PER_SECOND = "100"  # a long answer lasts a minute at any pace; others are soon over
FLOWS = Path(__file__).resolve().parent
START_SECONDS = 180  # five processes on a busy machine
TEST_SECONDS = 120
NEEDED = ("turns", "maintenance", "background", "schedule")
EXPECTED_WHILE_DOWN = re.compile(r"WebSocket connection|ERR_CONNECTION|Failed to load resource")
NO_TIME_TO_ANIMATE = re.compile(r"^Transition was (aborted|skipped)")  # from page to page, by a busy browser
_people = itertools.count(1)
T = TypeVar("T")
Theme = Literal["light", "dark"]
THEMES: dict[Theme, dict[str, object]] = {  # and what axe looks at there
    "light": {},  # every rule
    "dark": {"runOnly": ["color-contrast"]},  # what a theme can change
}

expect.set_options(timeout=30_000)


@dataclass
class Site:
    """The web process can be killed and started again on its port; the others live as long as the run."""

    port: int
    stripe_port: int  # for tests that pay; nobody listens there otherwise, and no plan has a price
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first starts the site; were it cut off at a test's own limit, all after it would fail too."""
    for item in items:
        if FLOWS in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_SECONDS + TEST_SECONDS))


@pytest.fixture(scope="session")
def site(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port, stripe_port = find_free_port(), find_free_port()
    environment = os.environ | {
        "SITE_URL": f"http://127.0.0.1:{port}",
        "STRIPE_SECRET_KEY": "sk_test_fake",
        "STRIPE_WEBHOOK_SECRETS": "whsec_fake",
        "STRIPE_API_BASE": f"http://127.0.0.1:{stripe_port}",
        "DEMO_TOKENS_PER_SECOND": WORDS_PER_SECOND,
        "METER_SECONDS": "0.5",  # as in the field
        "FOLLOW_CATALOGUE": "true",
        "PYTHONUNBUFFERED": "1",
    }
    Path(environment["STATIC_ROOT"]).mkdir(parents=True, exist_ok=True)
    made = Site(port, stripe_port, environment, tmp_path_factory.mktemp("site"))
    try:
        for program in WORKERS:
            if program.name in NEEDED:
                made.start(program.name, program.command)
        made.start_web()
        made.wait_for_workers()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def browser(site: Site) -> Iterator[Browser]:
    """After the site, which sets up the database: the driver keeps an event loop running in this thread."""
    with sync_playwright() as playwright:
        chromium = launched(playwright)
        yield chromium
        chromium.close()


def launched(playwright: Playwright) -> Browser:
    off = ",".join((*TURNED_OFF_BY_PLAYWRIGHT, *UNSEEN))
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox", f"--disable-features={off}"]
    )


@dataclass
class Visitor:
    """One person with a browser of their own. What the console complains about fails the test."""

    site: Site
    context: BrowserContext
    email: str
    scripted: bool
    cookie: str = ""  # of a session that is logged in
    complaints: list[str] = field(default_factory=list)
    outage: bool = False  # while the server is down on purpose, failed connections are no news

    def tab(self, path: str = "/chat/") -> Page:
        page = self.context.new_page()
        page.on("console", self._heard)  # what the content policy refuses is told here too
        page.on("pageerror", lambda error: self._failed(str(error)))
        page.goto(self.site.url + path)
        self.is_connected(page)
        return page

    def is_connected(self, page: Page) -> None:
        """On a chat page with a script: it runs, and its socket is open."""
        if self.scripted and page.locator("#app").count():
            expect(page.locator("html")).to_have_attribute("data-connection", "open")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not (self.outage and EXPECTED_WHILE_DOWN.search(message.text)):
            self.complaints.append(message.text)

    def _failed(self, error: str) -> None:
        if not NO_TIME_TO_ANIMATE.search(error):
            self.complaints.append(error)

    def log_in(self) -> Page:
        """As somebody who signed in earlier: the form has its own test."""
        self.context.add_cookies([{"name": "sessionid", "value": self.cookie, "url": self.site.url}])
        return self.tab("/chat/")

    def sign_in(self) -> Page:
        page = self.tab("/accounts/login/")
        page.get_by_label("Email").fill(self.email)
        from tests.make import PASSWORD  # models, which need Django to be set up

        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile("/chat/$"))
        self.is_connected(page)
        return page


@pytest.fixture
def visit(
    site: Site, browser: Browser, stored: Callable[[Callable[[], object]], object]
) -> Iterator[Callable[..., Visitor]]:
    """Makes a new person and a browser context for them; options go to the context."""
    visitors: list[Visitor] = []

    def make_one(**options: object) -> Visitor:
        name = f"ada-{os.getpid()}-{next(_people)}"
        cookie = str(stored(lambda: _person(name)))
        context = browser.new_context(**options)
        scripted = options.get("java_script_enabled", True) is True
        visitors.append(Visitor(site, context, f"{name}@example.com", scripted, cookie))
        return visitors[-1]

    yield make_one
    for visitor in visitors:
        visitor.context.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []


def _person(name: str) -> str:
    """Made, and logged in: the cookie of their session."""
    from django.test import Client

    from tests import make

    client = make.sign_in(Client(), make.user(name))
    return client.cookies["sessionid"].value


@pytest.fixture
def stored(django_db_blocker: pytest.FixtureRequest) -> Callable[[Callable[[], T]], T]:
    """Runs database code in a thread of its own: the browser's driver keeps an event loop running in this one."""

    def run(code: Callable[[], T]) -> T:
        from django.db import connection

        with django_db_blocker.unblock():  # type: ignore[attr-defined]
            try:
                return code()
            finally:
                connection.close()

    def in_thread(code: Callable[[], T]) -> T:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run, code).result()

    return in_thread


@pytest.fixture
def ada(visit: Callable[..., Visitor]) -> Visitor:
    return visit()


def switch(page: Page, scheme: Theme) -> None:
    """The other theme, with every colour arrived where it goes."""
    page.emulate_media(color_scheme=scheme)
    page.evaluate(
        "() => Promise.all(document.getAnimations().filter((one) => one instanceof CSSTransition)"
        ".map((one) => one.finished.catch(() => null)))"
    )


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def in_menu(page: Page, act: str) -> None:
    """Choose something from the menu of the first chat in the list."""
    item = page.locator("#sessions .session").first
    item.hover()
    item.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name=act, exact=True).click()
