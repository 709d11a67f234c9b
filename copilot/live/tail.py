"""One reader per web process: it follows the live channel and hands each session's news to whoever listens (T8.6)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from sys import getsizeof
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec
from django.conf import settings

from copilot.errors import Unavailable
from copilot.live import keys
from copilot.live.client import RedisDown, listening
from copilot.live.stream import NO_CURSOR, Entry, after, place_of

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2
CONNECT_SECONDS = 5.0
FOR_EVERY_CHAT = frozenset({"session.changed", "export.finished", "artifact.removed"})
QUEUE_EVENTS = 2_000  # a listener this far behind is told to take a snapshot again


class CursorLost(Exception):
    """The cursor is too old or not of this log: take a snapshot again."""


class Overflowed(Exception):
    """The listener was too slow: take a snapshot again."""


class Revoked(Exception):
    """The login or key that the listener was opened with is no longer accepted."""


class Listener(Protocol):
    def deliver(self, session_id: str, entries: Sequence[Entry]) -> None:
        """News of a session, once and in order. Must not block."""

    def lost(self, session_id: str) -> None:
        """The thread was lost; only a snapshot helps."""


class Watcher(Protocol):
    def changed(self, session_id: str, entries: Sequence[Entry]) -> None:
        """`session.changed` of any of the user's sessions, and what concerns them in all. Must not block."""


class News(msgspec.Struct, array_like=True):
    number: int
    batches: list[tuple[str, str, list[tuple[str, str, str]]]]  # session, user, [cursor, kind, payload]


_decoder = msgspec.msgpack.Decoder(News)


class Subscription:
    """One listener's place in one session's log."""

    __slots__ = ("held", "held_too_much", "listener", "place", "session_id")

    def __init__(self, session_id: str, listener: Listener) -> None:
        self.session_id = session_id
        self.listener = listener
        self.place: tuple[int, int] = (0, 0)
        self.held: list[Entry] | None = []  # while catching up, news waits here
        self.held_too_much = False  # and was dropped: the log has it

    def offer(self, entries: Sequence[Entry], last: tuple[int, int]) -> None:
        if self.held is not None:
            if len(self.held) + len(entries) > QUEUE_EVENTS:
                self.held, self.held_too_much = [], True
            self.held.extend(entries)
            return
        if entries[0].place <= self.place:
            entries = [entry for entry in entries if entry.place > self.place]
            if not entries:
                return
        self.place = last
        self.listener.deliver(self.session_id, entries)

    def release(self) -> None:
        """Caught up: hand over what came meanwhile, then go on live."""
        held, self.held = self.held, None
        if held:
            self.offer(held, held[-1].place)


class Tail:
    """Follows the live channel while anybody listens."""

    def __init__(self) -> None:
        self._sessions: dict[str, set[Subscription]] = {}
        self._users: dict[str, set[Watcher]] = {}
        self.on_account_closed: Callable[[], None] = lambda: None
        self._reader: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._number = 0

    # --- listening -------------------------------------------------------------------------------

    async def follow(self, session_id: str, cursor: str | None, listener: Listener) -> Subscription:
        """Everything after the cursor, once and in order; without one, everything from now on."""
        subscription = Subscription(session_id, listener)
        self._sessions.setdefault(session_id, set()).add(subscription)
        self._ensure_reading()
        try:
            async with asyncio.timeout(
                CONNECT_SECONDS
            ):  # wait_for would lose a cancellation that comes just then
                await self._connected.wait()
            if cursor is not None:
                await self._catch_up(subscription, cursor)
        except BaseException as problem:
            self.leave(subscription)
            if isinstance(problem, TimeoutError):
                raise Unavailable from problem
            raise
        subscription.release()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        listeners = self._sessions.get(subscription.session_id)
        if listeners is not None:
            listeners.discard(subscription)
            if not listeners:
                del self._sessions[subscription.session_id]

    def follow_user(self, user_id: int, watcher: Watcher) -> None:
        """Changes of all the user's sessions, for a sidebar; no replay."""
        self._users.setdefault(str(user_id), set()).add(watcher)
        self._ensure_reading()

    def leave_user(self, user_id: int, watcher: Watcher) -> None:
        watchers = self._users.get(str(user_id))
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._users[str(user_id)]

    @asynccontextmanager
    async def listen(self, session_id: str, cursor: str | None) -> AsyncIterator[Feed]:
        """News of one session as an async iterator of batches."""
        feed = Feed()
        subscription = await self.follow(session_id, cursor, feed)
        try:
            yield feed
        finally:
            self.leave(subscription)

    async def _catch_up(self, subscription: Subscription, cursor: str) -> None:
        while True:
            entries = await after(subscription.session_id, cursor)
            if entries is None:
                raise CursorLost
            subscription.place = place_of(cursor)
            if entries:
                cursor = entries[-1].cursor
                subscription.place = entries[-1].place
                subscription.listener.deliver(subscription.session_id, entries)
            elif subscription.held_too_much:
                subscription.held, subscription.held_too_much = (
                    [],
                    False,
                )  # the next page is behind what was dropped
            else:
                return

    # --- reading ---------------------------------------------------------------------------------

    def _ensure_reading(self) -> None:
        if (
            self._reader is None
            or self._reader.done()
            or self._reader.get_loop() is not asyncio.get_running_loop()
        ):
            self._connected = asyncio.Event()
            self._reader = asyncio.get_running_loop().create_task(self._read_for_ever(), name="tail")
            self._reader.add_done_callback(_log_failure)

    async def _read_for_ever(self) -> None:
        while True:
            try:
                await self._read()
            except RedisDown as problem:
                log.warning("the live channel is gone, listening again: %s", type(problem).__name__)
            if self._reader is not asyncio.current_task():
                return
            self._connected.clear()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _read(self) -> None:
        client = listening()
        subscription = client.pubsub()
        try:
            await subscription.subscribe(keys.LIVE_CHANNEL)
            async for message in subscription.listen():
                if message["type"] == "subscribe":
                    self._number = 0
                    self._connected.set()
                    self._reread_all()
                elif message["type"] == "message":
                    if self._is_idle():
                        return
                    self._hear(message["data"])
        finally:
            await subscription.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    def _is_idle(self) -> bool:
        """Nobody listens any more: a worker that waited once need not read everybody's news for ever."""
        if self._sessions or self._users:
            return False
        self._reader = None
        return True

    def _hear(self, message: bytes) -> None:
        try:
            news = _decoder.decode(message)
        except msgspec.MsgspecError:
            log.exception("news that cannot be read: reading the logs instead")
            self._reread_all()
        else:
            self._hand_out(news)

    def _hand_out(self, news: News) -> None:
        if self._number and news.number != self._number + 1:
            log.warning("news %s to %s was missed, reading again", self._number + 1, news.number - 1)
            self._reread_all()
        self._number = news.number
        for session_id, user_id, raw in news.batches:
            if raw[0][1] == "account.closed":
                self.on_account_closed()
            listeners = self._sessions.get(session_id)
            watchers = self._users.get(user_id)
            if not listeners and not watchers:
                continue
            entries = [Entry(cursor, kind, payload) for cursor, kind, payload in raw]
            last = entries[-1].place
            for subscription in tuple(listeners or ()):
                subscription.offer(entries, last)
            if watchers:
                changes = [entry for entry in entries if entry.kind in FOR_EVERY_CHAT]
                for watcher in tuple(watchers) if changes else ():
                    watcher.changed(session_id, changes)

    def _reread_all(self) -> None:
        """After a gap each live subscription reads its session's log from its own place."""
        loop = asyncio.get_running_loop()
        for subscriptions in self._sessions.values():
            for subscription in subscriptions:
                if subscription.held is None:
                    subscription.held = []
                    task = loop.create_task(self._reread(subscription))
                    task.add_done_callback(_log_failure)

    async def _reread(self, subscription: Subscription) -> None:
        while subscription in self._sessions.get(subscription.session_id, ()):
            cursor = "{}-{}".format(*subscription.place)
            try:
                if cursor == NO_CURSOR:
                    raise CursorLost
                await self._catch_up(subscription, cursor)
            except CursorLost:
                self.leave(subscription)
                subscription.listener.lost(subscription.session_id)
            except RedisDown:
                await asyncio.sleep(RECONNECT_SECONDS)  # going on live would leave a gap that nobody sees
            else:
                subscription.release()
                return


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("reading the log failed", exc_info=task.exception())


class Feed:
    """A listener that is an async iterator: SSE, waiters, tests."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._lost = False
        self._revoked = False

    def deliver(self, session_id: str, entries: Sequence[Entry]) -> None:
        if self._lost:
            return
        size = sum(getsizeof(entry.payload) for entry in entries)
        too_long = self._bytes > 0 and self._bytes + size > settings.SOCKET_QUEUE_BYTES
        if too_long or len(self._entries) + len(entries) > QUEUE_EVENTS:
            self.lost(session_id)
            return
        self._entries.extend(entries)
        self._bytes += size
        self._news.set()

    def lost(self, session_id: str) -> None:
        self._lost = True
        self._entries.clear()
        self._news.set()

    def revoke(self) -> None:
        """End the iteration: whoever reads may no longer read."""
        self._revoked = True
        self._news.set()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> list[Entry]:
        await self._news.wait()
        if self._revoked:
            raise Revoked
        if self._lost:
            raise Overflowed
        self._news.clear()
        batch = list(self._entries)
        self._entries.clear()
        self._bytes = 0
        return batch


TAIL = Tail()
_tails: WeakKeyDictionary[asyncio.AbstractEventLoop, Tail] = WeakKeyDictionary()


def here() -> Tail:
    """The reader of the running loop, for those who wait in a worker as well as in a web process."""
    loop = asyncio.get_running_loop()
    tail = _tails.get(loop)
    if tail is None:
        tail = _tails[loop] = Tail()
    return tail


__all__ = [
    "NO_CURSOR",
    "TAIL",
    "CursorLost",
    "Entry",
    "Feed",
    "Listener",
    "Overflowed",
    "Revoked",
    "Subscription",
    "Tail",
    "Watcher",
    "here",
]
