"""Read the chat page in browser tests."""

from __future__ import annotations

import json
import re

from playwright.sync_api import CDPSession, Locator, Page, WebSocketRoute, expect

from tests.support.browser import Visitor

LONG_ANSWER_PROMPT = "Give me a long answer"


def find_answers(page: Page) -> Locator:
    return page.locator(".row.answer .prose")


def find_user_messages(page: Page) -> Locator:
    return page.locator(".row.user:not(.pending) .bubble")


def expect_idle(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def create_share_link(page: Page) -> str:
    """Create the link in the open dialog and return its address."""
    page.get_by_role("button", name="Create link").click()
    url = page.get_by_label("Link", exact=True)
    expect(url).to_have_value(re.compile("/share/[0-9a-f-]{36}$"))
    return url.input_value()


# --- A page whose socket the test holds the other end of ---

TURN_ID = "00000000-0000-0000-0000-000000000001"
ANSWER_ROW: dict[str, object] = {
    "id": "row", "sequence": 10, "turn_id": TURN_ID, "kind": "assistant", "role": "assistant", "content": "",
    "author": "", "attachments": [], "branch": 0, "created_at": "2026-11-16T10:00:00.000Z",
    "streaming": True, "mid_turn": False, "model": "demo", "versions": 1, "duration_ms": None,
}  # fmt: skip


class SocketServer:
    """The server's end of the page's socket: it acknowledges everything and says what we want."""

    def __init__(self, page: Page) -> None:
        self.socket: WebSocketRoute | None = None
        self.session = ""
        page.route_web_socket("**/ws/", self._opened)

    def _opened(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        socket.on_message(self._heard)

    def _heard(self, text: str | bytes) -> None:
        command = json.loads(text)
        assert self.socket is not None
        self.socket.send(json.dumps({"kind": "ack", "ref": command["ref"], "message_id": "m"}))

    def say(self, *told: dict[str, object]) -> None:
        assert self.socket is not None
        self.socket.send(json.dumps([{"session_id": self.session, **event} for event in told]))


def open_chat_with_fake_socket(ada: Visitor, session: str) -> tuple[Page, SocketServer, CDPSession]:
    page = ada.context.new_page()
    wire = SocketServer(page)
    wire.session = session
    page.goto(f"{ada.site.url}/chat/{session}/")
    ada.is_connected(page)
    return page, wire, ada.context.new_cdp_session(page)


def create_chat(email: str) -> str:
    from django.contrib.auth.models import User

    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="Stream")
    factories.message(session, content="Tell me of the harbour.")
    return str(session.pk)
