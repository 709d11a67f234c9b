"""A WebSocket client for tests: send commands, receive responses and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User

from config.core.db import run_in_thread
from copilot.models import Session
from copilot.realtime import authentication, event_log
from copilot.realtime.events import SessionChanged
from copilot.routing import websocket_router
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import Rig


class Socket:
    """One connection of a client."""

    def __init__(self, wire: WebsocketCommunicator) -> None:
        self.wire = wire
        self.aside: list[dict[str, Any]] = []

    async def send(self, **command: object) -> None:
        await self.wire.send_to(text_data=msgspec.json.encode(command).decode())

    async def next(self) -> dict[str, Any]:
        return dict(msgspec.json.decode(await self.wire.receive_from(timeout=PATIENCE_SECONDS)))

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a command and wait for its response; events that arrive first are kept."""
        await self.send(kind=kind, ref="r", **fields)
        while True:
            frame = await self.next()
            if frame["kind"] in ("ack", "error"):
                assert frame["ref"] == "r"
                return frame
            self.aside.append(frame)

    async def event(self, *kinds: str) -> dict[str, Any]:
        """Return the next event, of one of these kinds if any are named."""
        while True:
            frame = self.aside.pop(0) if self.aside else await self.next()
            if not kinds or frame["kind"] in kinds:
                return frame


@asynccontextmanager
async def connected(
    user: User,
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    query: str = "",
    application: Any = websocket_router,
) -> AsyncIterator[Socket]:
    """Open a socket with a ticket, or with other credentials."""
    if not headers and not query:
        query = f"?ticket={await run_in_thread(authentication.issue_ticket, user.pk)}"
    wire = WebsocketCommunicator(application, f"/ws/{query}", headers=[(b"host", b"testserver"), *headers])
    accepted, _ = await wire.connect(timeout=PATIENCE_SECONDS)
    assert accepted
    try:
        yield Socket(wire)
    finally:
        await wire.disconnect(timeout=PATIENCE_SECONDS)


async def closes(wire: WebsocketCommunicator) -> int:
    """Return the code with which the server closes the socket."""
    while True:
        message = await wire.receive_output(timeout=PATIENCE_SECONDS)
        if message["type"] == "websocket.close":
            return int(message["code"])


@asynccontextmanager
async def engine() -> AsyncIterator[Rig]:
    """Create and destroy an engine outside this event loop."""
    rig = await run_in_thread(Rig)
    try:
        yield rig
    finally:
        await run_in_thread(rig.close)


def publish(session: Session, *titles: str) -> str:
    happened = [
        (SessionChanged(title=title, pinned=False, archived=False, state="idle"), None) for title in titles
    ]
    return event_log.append_events(str(session.pk), happened, user_id=session.owner_id)


class Choked:
    """Run the consumer behind a connection that accepts no data until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def gated(message: dict[str, Any]) -> None:
            await self.open.wait()
            await send(message)

        await websocket_router(scope, receive, gated)
