"""One reader per web process: it follows the live channel and hands each session's news to whoever listens (T8.6)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from sys import getsizeof
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from django.conf import settings

from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS, create_subscriber_client
from copilot.realtime import redis_keys
from copilot.realtime.event_log import EMPTY_LOG_CURSOR, get_last_cursor, parse_cursor, read_after
from copilot.realtime.event_log import LogEntry as Entry
from copilot.realtime.events import SessionSnapshot, encode_event

log = logging.getLogger(__name__)

RECONNECT_DELAY_SECONDS = 0.2
SUBSCRIBE_TIMEOUT_SECONDS = 5.0
USER_WIDE_KINDS = frozenset({"session.changed", "export.finished", "artifact.removed"})
MAX_QUEUED_EVENTS = 2_000  # a listener this far behind is told to take a snapshot again


class CursorLost(Exception):
    """The cursor is too old or not of this log: take a snapshot again."""


class FeedOverflowed(Exception):
    """The listener was too slow: take a snapshot again."""


class FeedRevoked(Exception):
    """The login or key that the listener was opened with is no longer accepted."""


class EventListener(Protocol):
    def deliver(self, session_id: str, entries: Sequence[Entry]) -> None:
        """News of a session, once and in order. Must not block."""

    def handle_cursor_lost(self, session_id: str) -> None:
        """The thread was lost; only a snapshot helps."""


class UserWatcher(Protocol):
    def deliver_session_changes(self, session_id: str, entries: Sequence[Entry]) -> None:
        """`session.changed` of any of the user's sessions, and what concerns them in all. Must not block."""


class LiveMessage(msgspec.Struct, array_like=True):
    number: int
    batches: list[tuple[str, str, list[tuple[str, str, str]]]]  # session, user, [cursor, kind, payload]


_live_message_decoder = msgspec.msgpack.Decoder(LiveMessage)


class EventSubscription:
    """One listener's place in one session's log."""

    __slots__ = ("held", "held_too_much", "listener", "place", "session_id")

    def __init__(self, session_id: str, listener: EventListener) -> None:
        self.session_id = session_id
        self.listener = listener
        self.place: tuple[int, int] = (0, 0)
        self.held: list[Entry] | None = []  # while catching up, news waits here
        self.held_too_much = False  # and was dropped: the log has it

    def receive(self, entries: Sequence[Entry], last: tuple[int, int]) -> None:
        if self.held is not None:
            if len(self.held) + len(entries) > MAX_QUEUED_EVENTS:
                self.held, self.held_too_much = [], True
            self.held.extend(entries)
            return
        if entries[0].place <= self.place:
            entries = [entry for entry in entries if entry.place > self.place]
            if not entries:
                return
        self.place = last
        self.listener.deliver(self.session_id, entries)

    def go_live(self) -> None:
        """Caught up: hand over what came meanwhile, then go on live."""
        held, self.held = self.held, None
        if held:
            self.receive(held, held[-1].place)


class EventFanout:
    """Follows the live channel while anybody listens."""

    def __init__(self) -> None:
        self._sessions: dict[str, set[EventSubscription]] = {}
        self._users: dict[str, set[UserWatcher]] = {}
        self.on_account_closed: Callable[[], None] = lambda: None
        self._reader: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._number = 0

    # --- listening -------------------------------------------------------------------------------

    async def subscribe(
        self, session_id: str, cursor: str | None, listener: EventListener
    ) -> EventSubscription:
        """Everything after the cursor, once and in order; without one, everything from now on."""
        subscription = EventSubscription(session_id, listener)
        self._sessions.setdefault(session_id, set()).add(subscription)
        self._ensure_reader()
        try:
            async with asyncio.timeout(
                SUBSCRIBE_TIMEOUT_SECONDS
            ):  # wait_for would lose a cancellation that comes just then
                await self._connected.wait()
            if cursor is not None:
                await self._catch_up(subscription, cursor)
        except BaseException as problem:
            self.unsubscribe(subscription)
            if isinstance(problem, TimeoutError):
                raise ServiceUnavailable from problem
            raise
        subscription.go_live()
        return subscription

    def unsubscribe(self, subscription: EventSubscription) -> None:
        listeners = self._sessions.get(subscription.session_id)
        if listeners is not None:
            listeners.discard(subscription)
            if not listeners:
                del self._sessions[subscription.session_id]

    def subscribe_user(self, user_id: int, watcher: UserWatcher) -> None:
        """Changes of all the user's sessions, for a sidebar; no replay."""
        self._users.setdefault(str(user_id), set()).add(watcher)
        self._ensure_reader()

    def unsubscribe_user(self, user_id: int, watcher: UserWatcher) -> None:
        watchers = self._users.get(str(user_id))
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._users[str(user_id)]

    @asynccontextmanager
    async def open_feed(self, session_id: str, cursor: str | None) -> AsyncIterator[EventFeed]:
        """News of one session as an async iterator of batches."""
        feed = EventFeed()
        subscription = await self.subscribe(session_id, cursor, feed)
        try:
            yield feed
        finally:
            self.unsubscribe(subscription)

    async def _catch_up(self, subscription: EventSubscription, cursor: str) -> None:
        while True:
            entries = await read_after(subscription.session_id, cursor)
            if entries is None:
                raise CursorLost
            subscription.place = parse_cursor(cursor)
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

    def _ensure_reader(self) -> None:
        if (
            self._reader is None
            or self._reader.done()
            or self._reader.get_loop() is not asyncio.get_running_loop()
        ):
            self._connected = asyncio.Event()
            self._reader = asyncio.get_running_loop().create_task(self._read_forever(), name="tail")
            self._reader.add_done_callback(_log_task_failure)

    async def _read_forever(self) -> None:
        while True:
            try:
                await self._read_channel()
            except REDIS_OUTAGE_ERRORS as problem:
                log.warning("the live channel is gone, listening again: %s", type(problem).__name__)
            if self._reader is not asyncio.current_task():
                return
            self._connected.clear()
            await asyncio.sleep(RECONNECT_DELAY_SECONDS)

    async def _read_channel(self) -> None:
        client = create_subscriber_client()
        subscription = client.pubsub()
        try:
            await subscription.subscribe(redis_keys.LIVE_CHANNEL)
            async for message in subscription.listen():
                if message["type"] == "subscribe":
                    self._number = 0
                    self._connected.set()
                    self._reread_all()
                elif message["type"] == "message":
                    if self._stop_if_idle():
                        return
                    self._handle_message(message["data"])
        finally:
            await subscription.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    def _stop_if_idle(self) -> bool:
        """Nobody listens any more: a worker that waited once need not read everybody's news for ever."""
        if self._sessions or self._users:
            return False
        self._reader = None
        return True

    def _handle_message(self, message: bytes) -> None:
        try:
            news = _live_message_decoder.decode(message)
        except msgspec.MsgspecError:
            log.exception("news that cannot be read: reading the logs instead")
            self._reread_all()
        else:
            self._deliver_batches(news)

    def _deliver_batches(self, news: LiveMessage) -> None:
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
                subscription.receive(entries, last)
            if watchers:
                changes = [entry for entry in entries if entry.kind in USER_WIDE_KINDS]
                for watcher in tuple(watchers) if changes else ():
                    watcher.deliver_session_changes(session_id, changes)

    def _reread_all(self) -> None:
        """After a gap each live subscription reads its session's log from its own place."""
        loop = asyncio.get_running_loop()
        for subscriptions in self._sessions.values():
            for subscription in subscriptions:
                if subscription.held is None:
                    subscription.held = []
                    task = loop.create_task(self._reread(subscription))
                    task.add_done_callback(_log_task_failure)

    async def _reread(self, subscription: EventSubscription) -> None:
        while subscription in self._sessions.get(subscription.session_id, ()):
            cursor = "{}-{}".format(*subscription.place)
            try:
                if cursor == EMPTY_LOG_CURSOR:
                    raise CursorLost
                await self._catch_up(subscription, cursor)
            except CursorLost:
                self.unsubscribe(subscription)
                subscription.listener.handle_cursor_lost(subscription.session_id)
            except REDIS_OUTAGE_ERRORS:
                await asyncio.sleep(
                    RECONNECT_DELAY_SECONDS
                )  # going on live would leave a gap that nobody sees
            else:
                subscription.go_live()
                return


def _log_task_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("reading the log failed", exc_info=task.exception())


class EventFeed:
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
        if too_long or len(self._entries) + len(entries) > MAX_QUEUED_EVENTS:
            self.handle_cursor_lost(session_id)
            return
        self._entries.extend(entries)
        self._bytes += size
        self._news.set()

    def handle_cursor_lost(self, session_id: str) -> None:
        self._lost = True
        self._entries.clear()
        self._news.set()

    def revoke(self) -> None:
        """End the iteration: whoever reads may no longer read."""
        self._revoked = True
        self._news.set()

    def __aiter__(self) -> EventFeed:
        return self

    async def __anext__(self) -> list[Entry]:
        await self._news.wait()
        if self._revoked:
            raise FeedRevoked
        if self._lost:
            raise FeedOverflowed
        self._news.clear()
        batch = list(self._entries)
        self._entries.clear()
        self._bytes = 0
        return batch


EVENT_FANOUT = EventFanout()
_fanouts_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, EventFanout] = WeakKeyDictionary()


def get_loop_fanout() -> EventFanout:
    """The reader of the running loop, for those who wait in a worker as well as in a web process."""
    loop = asyncio.get_running_loop()
    tail = _fanouts_by_loop.get(loop)
    if tail is None:
        tail = _fanouts_by_loop[loop] = EventFanout()
    return tail


# MERGED readers: Readers of a session's log in other apps and in this process: from a cursor, by the one tail reader (T8.6, L13).

LOG_OUTAGE_ERRORS: tuple[type[Exception], ...] = (
    ServiceUnavailable,
    *REDIS_OUTAGE_ERRORS,
)  # what a reader meets when the log is away


class RevocableConnection(Protocol):
    """An open connection that may lose the right to read."""

    def watch(self, on_revoked: Callable[[], None]) -> None: ...


@asynccontextmanager
async def open_session_feed(
    session_id: UUID,
    cursor: str | None,
    *,
    tail: EventFanout | None = None,
    connection: RevocableConnection | None = None,
) -> AsyncIterator[EventFeed]:
    """News after the cursor, or from now on; not being able to listen is an error of its own.

    The feed of a `connection` raises Revoked once the connection's login or key is revoked.
    """
    async with AsyncExitStack() as stack:
        try:
            feed = await stack.enter_async_context((tail or EVENT_FANOUT).open_feed(str(session_id), cursor))
        except (TimeoutError, *REDIS_OUTAGE_ERRORS):
            raise ServiceUnavailable from None
        if connection is not None:
            connection.watch(feed.revoke)
        yield feed


def build_snapshot_entry(page: SessionSnapshot, session_id: UUID, cursor: str) -> Entry:
    """A page that was made for one reader, as if it stood in the log."""
    return Entry(cursor, page.kind, encode_event(page, session_id=str(session_id)).decode())


def get_end_of_log(session_id: UUID) -> str:
    """Where a session's log ends now: whoever reads on from there misses nothing that comes."""
    try:
        return get_last_cursor(str(session_id))
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem


async def read_page_after(session_id: UUID, cursor: str, *, count: int = 500) -> list[Entry]:
    """The next page of the log, empty at its end: who has much to read takes it page by page, and overflows nothing."""
    try:
        page = await read_after(str(session_id), cursor, count=count)
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem
    if page is None:
        raise CursorLost
    return page
