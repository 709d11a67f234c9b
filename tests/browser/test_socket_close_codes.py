"""A page whose socket the server closes: it reads on, says why it cannot, or leads to the login."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser


@dataclass
class Line:
    """The page's way to the server; the next sockets may be refused with a code, as the server does it: after they opened."""

    refuse_with: int | None = None
    opened: int = 0
    sockets: list[WebSocketRoute] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)

    def join(self, socket: WebSocketRoute) -> None:
        self.opened += 1
        if self.refuse_with is not None:
            socket.close(code=self.refuse_with, reason="")
            return
        server = socket.connect_to_server()
        self.sockets.append(socket)

        def sent(text: str | bytes) -> None:
            command = json.loads(text)
            if command["kind"] == "session.subscribe":
                self.cursors.append(command.get("cursor", ""))
            server.send(text)

        socket.on_message(sent)


def test_too_many_connections_are_reported_and_not_retried_automatically(ada: Visitor) -> None:
    page = ada.log_in()
    line = Line()
    page.route_web_socket("**/ws/", line.join)
    page.reload()
    ada.is_connected(page)
    line.refuse_with = 4429
    line.sockets[-1].close(code=4429, reason="too_many_connections")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Pilothouse is open in too many tabs or apps. Close some, then try again.")
    opened = line.opened
    banner.get_by_role("button", name="Try again").click()
    expect(banner).to_be_visible()
    page.wait_for_function("() => document.documentElement.dataset.connection === 'full'")
    assert line.opened == opened + 1
    line.refuse_with = None
    banner.get_by_role("button", name="Try again").click()
    ada.is_connected(page)
    expect(banner).to_be_hidden()


def test_a_page_that_read_too_slowly_reads_on_from_its_cursor(ada: Visitor) -> None:
    page = ada.log_in()
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")
    expect(page.locator(".row.answer")).to_contain_text("kill -9")
    line = Line()
    page.route_web_socket("**/ws/", line.join)
    page.reload()
    ada.is_connected(page)
    line.sockets[-1].close(code=4009, reason="too_slow")
    page.wait_for_function("() => document.documentElement.dataset.connection === 'lost'")
    ada.is_connected(page)
    assert line.cursors[-1] == line.cursors[0] != ""


def test_signing_out_elsewhere_in_this_browser_leads_to_the_login(
    ada: Visitor, stored: Callable[[Callable[[], object]], object]
) -> None:
    """The open page is closed by the server within two seconds, and finds the login instead."""
    page = ada.log_in()
    stored(_forget_logins)
    page.wait_for_url("**/accounts/login/**")


def _forget_logins() -> None:
    from django.contrib.sessions.models import Session

    Session.objects.all().delete()
