"""Deliver events from the live channel to the subscribers of this process, through one reader per event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from sys import getsizeof
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
import structlog
from django.conf import settings

from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS, create_subscriber_client
from copilot.realtime import redis_keys
from copilot.realtime.event_log import EMPTY_LOG_CURSOR, LogEntry, get_last_cursor, parse_cursor, read_after
from copilot.realtime.events import SessionSnapshot, encode_event

log = structlog.get_logger(__name__)

RECONNECT_DELAY_SECONDS = 0.2
SUBSCRIBE_TIMEOUT_SECONDS = 5.0
USER_WIDE_KINDS = frozenset({"session.changed", "export.finished", "artifact.removed"})
MAX_QUEUED_EVENTS = 2_000  # a listener this far behind has to start again from a snapshot

# Raised to readers while the event log cannot be reached.
LOG_OUTAGE_ERRORS: tuple[type[Exception], ...] = (ServiceUnavailable, *REDIS_OUTAGE_ERRORS)


class CursorLost(Exception):
    """The cursor is too old or belongs to another log. The reader needs a new snapshot."""


class FeedOverflowed(Exception):
    """The reader was too slow and needs a new snapshot."""


class FeedRevoked(Exception):
    """The login or API key that opened the feed has been revoked."""


class EventListener(Protocol):
    def deliver(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        """Receive events of a session, each once and in order. Must not block."""

    def handle_cursor_lost(self, session_id: str) -> None:
        """Start again from a snapshot: events were missed that the log no longer holds."""


class UserWatcher(Protocol):
    def deliver_session_changes(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        """Receive user-wide events of any of the user's sessions. Must not block."""


class LiveMessage(msgspec.Struct, array_like=True):
    number: int
    batches: list[tuple[str, str, list[tuple[str, str, str]]]]  # session, user, [cursor, kind, payload]


_live_message_decoder = msgspec.msgpack.Decoder(LiveMessage)


class EventSubscription:
    """A listener's place in a session's log."""

    __slots__ = ("held", "held_too_much", "listener", "place", "session_id")

    def __init__(self, session_id: str, listener: EventListener) -> None:
        self.session_id = session_id
        self.listener = listener
        self.place: tuple[int, int] = (0, 0)
        self.held: list[LogEntry] | None = []  # live events that wait while the log is read; None once live
        self.held_too_much = False  # held events were dropped: they must be read from the log

    def receive(self, entries: Sequence[LogEntry], last: tuple[int, int]) -> None:
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
        held, self.held = self.held, None
        if held:
            self.receive(held, held[-1].place)


class EventFanout:
    """Reads the live channel while there are subscribers."""

    def __init__(self) -> None:
        self._sessions: dict[str, set[EventSubscription]] = {}
        self._users: dict[str, set[UserWatcher]] = {}
        self.on_account_closed: Callable[[], None] = lambda: None
        self._reader: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._number = 0

    # --- Subscriptions ---------------------------------------------------------------------------

    async def subscribe(
        self, session_id: str, cursor: str | None, listener: EventListener
    ) -> EventSubscription:
        """Deliver all events after the cursor, each once and in order; without a cursor, all from now on."""
        subscription = EventSubscription(session_id, listener)
        self._sessions.setdefault(session_id, set()).add(subscription)
        self._ensure_reader()
        try:
            # Not wait_for, which can lose a cancellation that arrives together with the result.
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS):
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
        """Deliver user-wide events of all sessions of a user from now on, without replay."""
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
                subscription.held, subscription.held_too_much = [], False
                # The next page of the log contains what was dropped.
            else:
                return

    # --- Reading the channel ---------------------------------------------------------------------

    def _ensure_reader(self) -> None:
        if (
            self._reader is None
            or self._reader.done()
            or self._reader.get_loop() is not asyncio.get_running_loop()
        ):
            self._connected = asyncio.Event()
            self._reader = asyncio.get_running_loop().create_task(self._read_forever(), name="event fan-out")
            self._reader.add_done_callback(_log_task_failure)

    async def _read_forever(self) -> None:
        while True:
            try:
                await self._read_channel()
            except REDIS_OUTAGE_ERRORS as problem:
                log.warning("live_channel_lost", error_kind=type(problem).__name__)
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
        """Stop reading without subscribers: a worker that once waited for a turn need not read all events forever."""
        if self._sessions or self._users:
            return False
        self._reader = None
        return True

    def _handle_message(self, message: bytes) -> None:
        try:
            decoded = _live_message_decoder.decode(message)
        except msgspec.MsgspecError:
            log.exception("live_message_invalid")
            self._reread_all()
        else:
            self._deliver_batches(decoded)

    def _deliver_batches(self, message: LiveMessage) -> None:
        if self._number and message.number != self._number + 1:
            log.warning("live_messages_missed", first=self._number + 1, last=message.number - 1)
            self._reread_all()
        self._number = message.number
        for session_id, user_id, raw in message.batches:
            if raw[0][1] == "account.closed":
                self.on_account_closed()
            listeners = self._sessions.get(session_id)
            watchers = self._users.get(user_id)
            if not listeners and not watchers:
                continue
            entries = [LogEntry(cursor, kind, payload) for cursor, kind, payload in raw]
            last = entries[-1].place
            for subscription in tuple(listeners or ()):
                subscription.receive(entries, last)
            if watchers:
                changes = [entry for entry in entries if entry.kind in USER_WIDE_KINDS]
                for watcher in tuple(watchers) if changes else ():
                    watcher.deliver_session_changes(session_id, changes)

    def _reread_all(self) -> None:
        """Let each live subscription read its session's log from its own cursor, to close a gap."""
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
                # Stay in this loop: going live now would leave a gap that nobody notices.
                await asyncio.sleep(RECONNECT_DELAY_SECONDS)
            else:
                subscription.go_live()
                return


def _log_task_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("event_fanout_failed", exc_info=task.exception())


# --- Feeds -------------------------------------------------------------------------------------------


class EventFeed:
    """A listener that is an async iterator of batches. For server-sent events and code that waits for a turn."""

    def __init__(self) -> None:
        self._entries: deque[LogEntry] = deque()
        self._bytes = 0
        self._has_news = asyncio.Event()
        self._lost = False
        self._revoked = False

    def deliver(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        if self._lost:
            return
        size = sum(getsizeof(entry.payload) for entry in entries)
        too_long = self._bytes > 0 and self._bytes + size > settings.SOCKET_QUEUE_BYTES
        if too_long or len(self._entries) + len(entries) > MAX_QUEUED_EVENTS:
            self.handle_cursor_lost(session_id)
            return
        self._entries.extend(entries)
        self._bytes += size
        self._has_news.set()

    def handle_cursor_lost(self, session_id: str) -> None:
        self._lost = True
        self._entries.clear()
        self._has_news.set()

    def revoke(self) -> None:
        self._revoked = True
        self._has_news.set()

    def __aiter__(self) -> EventFeed:
        return self

    async def __anext__(self) -> list[LogEntry]:
        await self._has_news.wait()
        if self._revoked:
            raise FeedRevoked
        if self._lost:
            raise FeedOverflowed
        self._has_news.clear()
        batch = list(self._entries)
        self._entries.clear()
        self._bytes = 0
        return batch


EVENT_FANOUT = EventFanout()
_fanouts_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, EventFanout] = WeakKeyDictionary()


def get_loop_fanout() -> EventFanout:
    """Return the fan-out of the running event loop. For code that runs in workers as well as in web processes."""
    loop = asyncio.get_running_loop()
    fanout = _fanouts_by_loop.get(loop)
    if fanout is None:
        fanout = _fanouts_by_loop[loop] = EventFanout()
    return fanout


class RevocableConnection(Protocol):
    def watch(self, on_revoked: Callable[[], None]) -> None: ...


@asynccontextmanager
async def open_session_feed(
    session_id: UUID,
    cursor: str | None,
    *,
    fanout: EventFanout | None = None,
    connection: RevocableConnection | None = None,
) -> AsyncIterator[EventFeed]:
    """Open a feed of the events after the cursor, or from now on; raise `ServiceUnavailable` while Redis is down.

    With a `connection`, the feed raises `FeedRevoked` once the connection's login or API key is revoked.
    """
    async with AsyncExitStack() as stack:
        try:
            feed = await stack.enter_async_context(
                (fanout or EVENT_FANOUT).open_feed(str(session_id), cursor)
            )
        except (TimeoutError, *REDIS_OUTAGE_ERRORS):
            raise ServiceUnavailable from None
        if connection is not None:
            connection.watch(feed.revoke)
        yield feed


def build_snapshot_entry(snapshot: SessionSnapshot, session_id: UUID, cursor: str) -> LogEntry:
    """Wrap a snapshot that was built for one reader as if it were an entry of the log."""
    return LogEntry(cursor, snapshot.kind, encode_event(snapshot, session_id=str(session_id)).decode())


def get_end_of_log(session_id: UUID) -> str:
    try:
        return get_last_cursor(str(session_id))
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem


async def read_page_after(session_id: UUID, cursor: str, *, count: int = 500) -> list[LogEntry]:
    """Read the next page of the log; empty at its end. A long log is read page by page, so that no feed overflows."""
    try:
        page = await read_after(str(session_id), cursor, count=count)
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem
    if page is None:
        raise CursorLost
    return page
