"""Open a chat with artifacts of every kind in a browser."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, Page, expect

from tests.support.browser import Site, Visitor

T = TypeVar("T")
NOT_OURS = re.compile(
    r"Content Security Policy|sandbox|Failed to load resource|ERR_BLOCKED|Blocked|Refused|Unsafe attempt"
)


def png(width: int = 320, height: int = 200, *, padding: int = 0) -> bytes:
    """Build a picture of two colours; padding makes the file larger."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    line = b"\0" + bytes((20, 102, 107)) * (width // 2) + bytes((226, 239, 238)) * (width - width // 2)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    filler = chunk(b"teXt", b"\0" * padding) if padding else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + filler
        + chunk(b"IDAT", zlib.compress(line * height))
        + chunk(b"IEND", b"")
    )


@dataclass
class Reader:
    """Ada's browser with one chat, to which artifacts are added as the agent would."""

    visitor: Visitor
    page: Page
    session_id: str
    stored: Callable[[Callable[[], object]], object]
    forgiving: bool = False  # a hostile document was shown

    def makes(self, name: str, content: bytes | str) -> str:
        """Add an artifact by a tool call; the page must be reloaded to show it."""

        def make_it() -> str:
            from copilot.files import services as files
            from copilot.models import Session
            from tests.support import factories

            session = Session.objects.get(pk=self.session_id)
            call = f"call-{factories.next_sequence(session)}"
            factories.message(
                session,
                "tool_call",
                call_id=call,
                data={"tool": "write_file", "arguments": {"name": name}},
            )
            data = content.encode() if isinstance(content, str) else content
            file = files.store_file(
                session.owner_id, name=name, content=data, source="agent", session_id=session.pk, call_id=call
            )
            return str(file.pk)

        return str(self.stored(make_it))

    def says(self, text: str) -> None:
        def say() -> None:
            from copilot.models import Session
            from tests.support import factories

            factories.message(Session.objects.get(pk=self.session_id), "assistant", content=text)

        self.stored(say)

    def load(self) -> None:
        self.page.goto(f"{self.visitor.site.url}/chat/{self.session_id}/")
        self.visitor.is_connected(self.page)

    def opens(self, file_id: str) -> Locator:
        """Reload the page and open the panel with this artifact."""
        self.load()
        self.page.locator(f'.made [data-file="{file_id}"]').click()
        expect(self.panel.locator("[data-slot=viewer]")).to_be_visible()
        return self.panel

    @property
    def panel(self) -> Locator:
        return self.page.locator("#panel")

    @property
    def stage(self) -> Locator:
        return self.panel.locator(".stage.ready")

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("#panel iframe")

    def forgives(self) -> None:
        """Ignore console messages of a hostile document about its own restrictions."""
        self.forgiving = True

    def complaints(self) -> list[str]:
        """Return the console's messages, without one that Chromium logs when a page is left during a transition."""
        told = [one for one in self.visitor.complaints if "ViewTransition" not in one]
        return [one for one in told if not (self.forgiving and NOT_OURS.search(one))]


def reading(
    site: Site, browser: Browser, blocker: pytest.FixtureRequest, name: str, **options: Any
) -> Iterator[Reader]:
    def stored(code: Callable[[], T]) -> T:
        from django.db import connection

        def run() -> T:
            with blocker.unblock():  # type: ignore[attr-defined]
                try:
                    return code()
                finally:
                    connection.close()

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run).result()

    def begin() -> str:
        from tests.support import factories

        session = factories.session(factories.user(name), title="Ship's papers")
        factories.message(session, content="Make me some papers, please.")
        return str(session.pk)

    session_id = stored(begin)
    context = browser.new_context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor = Visitor(site, context, f"{name}@example.com", True)
    reader = Reader(visitor, visitor.sign_in(), session_id, stored)
    yield reader
    context.close()
    assert not reader.complaints(), reader.complaints()
