"""A whole site in child processes and a real browser in front of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import (
    Browser,
    expect,
    sync_playwright,
)

from config.dev.run import WORKERS
from config.dev.servers import find_free_port
from tests.support.browser import START_SECONDS, Site, Visitor, launch_chromium

BROWSER_TESTS = Path(__file__).resolve().parent
TEST_SECONDS = 120
NEEDED = ("turns", "maintenance", "background", "schedule")
_people = itertools.count(1)
T = TypeVar("T")

expect.set_options(timeout=30_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first starts the site; were it cut off at a test's own limit, all after it would fail too."""
    for item in items:
        if BROWSER_TESTS in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_SECONDS + TEST_SECONDS))


@pytest.fixture(scope="session")
def site(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port, stripe_port = find_free_port(), find_free_port()
    environment = os.environ | {
        "SITE_URL": f"http://127.0.0.1:{port}",
        "STRIPE_SECRET_KEY": "sk_test_fake",
        "STRIPE_WEBHOOK_SECRETS": "whsec_fake",
        "STRIPE_API_BASE": f"http://127.0.0.1:{stripe_port}",
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
        chromium = launch_chromium(playwright)
        yield chromium
        chromium.close()


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

    from tests.support import factories

    client = factories.sign_in(Client(), factories.user(name))
    return client.cookies["sessionid"].value


@pytest.fixture
def stored(django_db_blocker: pytest.FixtureRequest) -> Callable[[Callable[[], T]], T]:
    """Runs database code in a thread of its own: the browser's driver keeps an event loop running in this one."""

    def run(code: Callable[[], T]) -> T:
        from django.db import connection

        with django_db_blocker.unblock():
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
