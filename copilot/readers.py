"""Readers of a session's log in other apps and in this process: from a cursor, by the one tail reader (T8.6, L13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol
from uuid import UUID

from copilot.bridge import in_thread as in_thread
from copilot.errors import Unavailable
from copilot.events import SessionSnapshot, encode
from copilot.live.client import RedisDown
from copilot.live.stream import Entry as Entry
from copilot.live.stream import after, last_cursor
from copilot.live.stream import check_cursor as check_cursor
from copilot.live.tail import TAIL, Tail
from copilot.live.tail import CursorLost as CursorLost
from copilot.live.tail import Feed as Feed
from copilot.live.tail import Overflowed as Overflowed
from copilot.live.tail import Revoked as Revoked
from copilot.live.tail import here as here

OUTAGES: tuple[type[Exception], ...] = (Unavailable, *RedisDown)  # what a reader meets when the log is away


class Revocable(Protocol):
    """An open connection that may lose the right to read."""

    def watch(self, on_revoked: Callable[[], None]) -> None: ...


@asynccontextmanager
async def listening(
    session_id: UUID, cursor: str | None, *, tail: Tail | None = None, connection: Revocable | None = None
) -> AsyncIterator[Feed]:
    """News after the cursor, or from now on; not being able to listen is an error of its own.

    The feed of a `connection` raises Revoked once the connection's login or key is revoked.
    """
    async with AsyncExitStack() as stack:
        try:
            feed = await stack.enter_async_context((tail or TAIL).listen(str(session_id), cursor))
        except (TimeoutError, *RedisDown):
            raise Unavailable from None
        if connection is not None:
            connection.watch(feed.revoke)
        yield feed


def entry_of(page: SessionSnapshot, session_id: UUID, cursor: str) -> Entry:
    """A page that was made for one reader, as if it stood in the log."""
    return Entry(cursor, page.kind, encode(page, session_id=str(session_id)).decode())


def end_of_log(session_id: UUID) -> str:
    """Where a session's log ends now: whoever reads on from there misses nothing that comes."""
    try:
        return last_cursor(str(session_id))
    except RedisDown as problem:
        raise Unavailable from problem


async def page_after(session_id: UUID, cursor: str, *, count: int = 500) -> list[Entry]:
    """The next page of the log, empty at its end: who has much to read takes it page by page, and overflows nothing."""
    try:
        page = await after(str(session_id), cursor, count=count)
    except RedisDown as problem:
        raise Unavailable from problem
    if page is None:
        raise CursorLost
    return page
