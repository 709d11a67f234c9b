"""Signal workers through Redis: turns that wait to be run, and turns to stop.

A wake-up is only a hint. The turn's row is the truth, and the sweep sends wake-ups again that nobody took. A stop is a
broadcast that is quick, and a mark that survives a lost broadcast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import msgspec
import redis.asyncio

from config.core.redis import create_subscriber_client, get_async_redis, get_redis, get_script
from copilot.realtime import redis_keys

WAKEUPS_LIFETIME_SECONDS = 24 * 3600
POLL_SECONDS = 2  # how long Redis may hold a poll: even an empty answer proves that the connection works
ANSWER_TIMEOUT_SECONDS = 4.0  # beyond POLL_SECONDS; a connection that is silent for longer is given up


def push_wakeup(turn_id: UUID) -> None:
    get_script("push_wakeup")(keys=[redis_keys.WAKEUPS_KEY], args=build_wake_arguments(turn_id))


def build_wake_arguments(turn_id: UUID) -> list[str | int]:
    return [str(turn_id), WAKEUPS_LIFETIME_SECONDS]


def count_wakeups() -> int:
    return int(get_redis().llen(redis_keys.WAKEUPS_KEY))


class TurnQueueReader:
    """A worker's connection to the list."""

    def __init__(self) -> None:
        self._client: redis.asyncio.Redis | None = None

    async def wait_for_turn(self) -> UUID | None:
        """Wait up to POLL_SECONDS for an id; None when none came. Raises when Redis does not answer."""
        if self._client is None:
            self._client = create_subscriber_client()
        async with asyncio.timeout(POLL_SECONDS + ANSWER_TIMEOUT_SECONDS):
            popped: tuple[bytes, bytes] | None = await self._client.blpop(
                [redis_keys.WAKEUPS_KEY], timeout=POLL_SECONDS
            )  # type: ignore[assignment]
        return UUID(popped[1].decode()) if popped else None

    async def take_more(self, limit: int) -> list[UUID]:
        if self._client is None or limit < 1:
            return []
        values: list[bytes] | None = await self._client.lpop(redis_keys.WAKEUPS_KEY, limit)  # type: ignore[assignment]
        return [UUID(value.decode()) for value in values or ()]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


STOP_MARK_LIFETIME_SECONDS = 24 * 3600
COVERED_LIFETIME_SECONDS = 60  # far longer than the gap between two turns


class StopMessage(msgspec.Struct, array_like=True):
    session_id: str
    turn_id: str


def signal_stop(session_id: str, turn_id: str) -> None:
    """Stop this turn only: a message accepted later starts a turn with another id."""
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.set(redis_keys.stop_key(session_id), turn_id, ex=STOP_MARK_LIFETIME_SECONDS)
        pipe.publish(redis_keys.STOP_CHANNEL, msgspec.msgpack.encode(StopMessage(session_id, turn_id)))
        pipe.execute()


def cover_queued_messages(session_id: str, through: int) -> None:
    """Keep messages accepted up to this number from starting a turn. For a stop that arrives between two turns."""
    get_redis().set(redis_keys.stopped_through_key(session_id), through, ex=COVERED_LIFETIME_SECONDS)


def get_covered_number(session_id: str) -> int | None:
    value = get_redis().get(redis_keys.stopped_through_key(session_id))
    return int(value) if value is not None else None


async def read_stop_marks(session_ids: Sequence[str]) -> list[str]:
    """Read the id of the turn stopped last in each of these sessions; empty where there is none."""
    if not session_ids:
        return []
    values: list[bytes | None] = await get_async_redis().mget(
        [redis_keys.stop_key(session_id) for session_id in session_ids]
    )  # type: ignore[assignment]
    return [(value or b"").decode() for value in values]


async def listen_for_stops() -> AsyncIterator[StopMessage]:
    """Yield stops as they are broadcast, until the connection ends. Polling the marks covers the gap after that."""
    client = create_subscriber_client()
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        try:
            await subscription.subscribe(redis_keys.STOP_CHANNEL)
            async for message in subscription.listen():
                yield msgspec.msgpack.decode(message["data"], type=StopMessage)
        finally:
            await client.aclose()
