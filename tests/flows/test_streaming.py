"""Thousands of deltas without a stutter: the real page, and a socket that we hold the other end of (W4.4)."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import CDPSession, Page, WebSocketRoute, expect

from tests.flows.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

DELTAS = 5_000
FEW = 100
TURN = "00000000-0000-0000-0000-000000000001"
WORDS = "The harbour lights of **Hamburg** were seen by `nobody` that night. "
PARAGRAPH = WORDS * 3 + "\n\n- one\n- two\n\n```python\nprint('ahoy')\n```\n\n"
# How long each frame's work took, and how much of it was over what an eye notices.
WATCH = """
window.frames_ms = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (work) => ask((now) => {
  const began = performance.now();
  work(now);
  window.frames_ms.push(performance.now() - began);
});
"""


class Wire:
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


def stream(page: Page, wire: Wire, text: str, pieces: int) -> None:
    """The text as one answer in so many deltas, about as fast as the fastest models write."""
    row = {
        "id": "row", "sequence": 10, "turn_id": TURN, "kind": "assistant", "role": "assistant", "content": "",
        "author": "", "attachments": [], "branch": 0, "created_at": "2026-11-16T10:00:00.000Z",
        "streaming": True, "mid_turn": False, "model": "demo", "versions": 1, "duration_ms": None,
    }  # fmt: skip
    wire.say(
        {"kind": "turn.queued", "turn_id": TURN, "origin": "web", "run_ids": []},
        {"kind": "turn.started", "turn_id": TURN, "run_ids": [], "model": "demo"},
        {"kind": "text.started", "turn_id": TURN, "block_id": "b", "row_id": "row", "message": row},
    )
    size = -(-len(text) // pieces)
    parts = [(at, text[at : at + size]) for at in range(0, len(text), size)]
    for first in range(0, len(parts), 10):
        deltas = [
            {
                "kind": "text.extended",
                "turn_id": TURN,
                "block_id": "b",
                "row_id": "row",
                "offset": at,
                "delta": part,
            }
            for at, part in parts[first : first + 10]
        ]
        wire.say(*deltas)
        time.sleep(0.004)  # the pace of the wire, not a wait for anything
    expect(page.locator(".row.answer .prose")).to_contain_text("THE END", timeout=60_000)


def opened(ada: Visitor, session: str) -> tuple[Page, Wire, CDPSession]:
    page = ada.context.new_page()
    page.add_init_script(WATCH)
    wire = Wire(page)
    wire.session = session
    page.goto(f"{ada.site.url}/chat/{session}/")
    ada.is_connected(page)
    return page, wire, ada.context.new_cdp_session(page)


def heap(cdp: CDPSession) -> int:
    cdp.send("HeapProfiler.enable")
    cdp.send("HeapProfiler.collectGarbage")
    return int(cdp.send("Runtime.getHeapUsage")["usedSize"])


def chat(email: str) -> str:
    from django.contrib.auth.models import User

    from tests import make

    session = make.session(User.objects.get(email=email), title="Stream")
    make.message(session, content="Tell me of the harbour.")
    return str(session.pk)


def test_five_thousand_deltas_cost_no_long_frame_and_no_memory(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W4.4: frames stay short to the end, and what is kept is the text, however many pieces it came in"""
    session = stored(lambda: chat(ada.email))
    ada.log_in()
    text = PARAGRAPH * (DELTAS * 4 // len(PARAGRAPH)) + "THE END"
    few, wire, cdp = opened(ada, session)
    stream(few, wire, text, FEW)
    kept_by_few = heap(cdp)
    few.close()
    page, wire, cdp = opened(ada, session)
    stream(page, wire, text, DELTAS)
    assert heap(cdp) <= kept_by_few * 1.25
    frames: list[float] = page.evaluate("window.frames_ms")
    quarter = len(frames) // 4
    assert statistics.median(frames) < 25
    assert sum(took > 50 for took in frames) <= len(frames) * 0.02
    # Work that grew with the text would show here, on a machine of any speed.
    assert statistics.median(frames[-quarter:]) < 3 * statistics.median(frames[:quarter]) + 2
