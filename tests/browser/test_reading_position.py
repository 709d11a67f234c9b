"""A reader of older pages keeps their place when a snapshot replaces the conversation (W2.2, T8.3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from tests.support.browser import Visitor

pytestmark = pytest.mark.browser

Stored = Callable[[Callable[[], object]], object]
TOP = "row => row.getBoundingClientRect().top"


@dataclass
class Line:
    """What comes over the socket passes here, and it can be cut."""

    resets: int = 0
    sockets: list[WebSocketRoute] = field(default_factory=list)

    def join(self, socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        self.sockets.append(socket)

        def told(text: str | bytes) -> None:
            said = json.loads(text)
            for event in said if isinstance(said, list) else [said]:
                self.resets += event.get("kind") == "session.snapshot" and event["reset"]
            socket.send(text)

        server.on_message(told)


@dataclass
class Reader:
    page: Page
    session_id: str
    line: Line
    stored: Stored

    def line_of(self, number: int) -> Locator:
        return self.page.get_by_text(f"Line {number}", exact=True)

    def reads(self, number: int) -> float:
        """Scrolls to a line of an older page; its place on the screen."""
        self.page.locator("#scroll").evaluate("box => box.scrollTo(0, 300)")
        expect(self.page.locator("#transcript .row")).to_have_count(100)
        return float(self.line_of(number).evaluate(f"row => (row.scrollIntoView(), ({TOP})(row))"))

    def still_reads(self, number: int, top: float) -> None:
        assert self.line_of(number).evaluate(TOP) == pytest.approx(top, abs=2)

    def lines(self) -> list[str]:
        return self.page.locator("#transcript .row :is(.prose, .bubble)").all_inner_texts()

    def numbers(self) -> list[int]:
        return [int(text.strip().removeprefix("Line ")) for text in self.lines()]


def say(session_id: str, numbers: range) -> None:
    from copilot.models import Session
    from tests.support import factories

    session = Session.objects.get(pk=session_id)
    for number in numbers:
        factories.message(session, "user" if number % 2 else "assistant", content=f"Line {number}")


def tell_anew(session_id: str) -> None:
    import uuid

    from copilot.chat import announcements

    announcements.publish_snapshot(uuid.UUID(session_id))


def lose_the_log(session_id: str) -> None:
    from config.core.redis import get_redis
    from copilot.realtime import redis_keys

    get_redis().delete(redis_keys.event_log_key(session_id))


@pytest.fixture
def reader(ada: Visitor, stored: Stored) -> Reader:
    def begin() -> str:
        from django.contrib.auth.models import User

        from tests.support import factories

        session = factories.session(User.objects.get(email=ada.email), title="Long")
        say(str(session.pk), range(120))
        tell_anew(str(session.pk))
        return str(session.pk)

    session_id = str(stored(begin))
    line = Line()
    ada.context.route_web_socket("**/ws/", line.join)
    ada.log_in()
    return Reader(ada.tab(f"/chat/{session_id}/"), session_id, line, stored)


def test_a_lost_cursor_moves_no_reader_and_drops_no_older_page(reader: Reader) -> None:
    """E1, T8.3: the log was lost while the connection was, and a few messages came meanwhile"""
    top = reader.reads(30)

    def meanwhile() -> None:
        lose_the_log(reader.session_id)
        say(reader.session_id, range(120, 126))

    reader.stored(meanwhile)
    reader.line.sockets[-1].close()
    expect(reader.line_of(125)).to_have_count(1)
    assert reader.line.resets == 1
    reader.still_reads(30, top)
    assert reader.numbers() == list(range(20, 126))
    reader.page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
    expect(reader.line_of(0)).to_have_count(1)
    assert reader.numbers() == list(range(126))


def test_what_came_between_the_older_pages_and_a_snapshot_is_there_too(reader: Reader) -> None:
    """E1, W2.2: more came than a snapshot has"""
    top = reader.reads(30)

    def meanwhile() -> None:
        say(reader.session_id, range(120, 330))
        tell_anew(reader.session_id)

    reader.stored(meanwhile)
    expect(reader.line_of(329)).to_have_count(1)
    reader.still_reads(30, top)
    assert reader.numbers() == list(range(20, 330))


def test_rows_that_left_the_conversation_leave_the_older_pages_too(reader: Reader) -> None:
    """W2.7, T8.3: another version begins within the visible rows; the rows before it stay"""
    top = reader.reads(30)

    def another_version() -> None:
        from copilot.models import Message

        later = Message.objects.filter(session=reader.session_id, sequence__gt=40)
        later.update(hidden=Message.Hidden.UNDONE)
        say(reader.session_id, range(500, 530))
        tell_anew(reader.session_id)

    reader.stored(another_version)
    expect(reader.line_of(529)).to_have_count(1)
    reader.still_reads(30, top)
    assert reader.numbers() == [*range(20, 40), *range(500, 530)]
