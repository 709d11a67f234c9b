"""Stop: a mark that survives a lost broadcast, and the broadcast that makes it quick (A1.4, T7.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from config.core.redis import create_subscriber_client, get_async_redis, get_redis
from copilot.realtime import redis_keys

STOP_MARK_LIFETIME_SECONDS = 24 * 3600
COVERED_LIFETIME_SECONDS = 60  # far longer than one turn takes to follow another


class StopMessage(msgspec.Struct, array_like=True):
    session_id: str
    turn_id: str


def signal_stop(session_id: str, turn_id: str) -> None:
    """Stop this turn, and no other: a message accepted later starts a turn of another id."""
    with get_redis().pipeline(transaction=False) as pipe:
        pipe.set(redis_keys.stop_key(session_id), turn_id, ex=STOP_MARK_LIFETIME_SECONDS)
        pipe.publish(redis_keys.STOP_CHANNEL, msgspec.msgpack.encode(StopMessage(session_id, turn_id)))
        pipe.execute()


def cover_queued_messages(session_id: str, through: int) -> None:
    """Between two turns: what was accepted up to here does not start by itself any more (T7.3)."""
    get_redis().set(redis_keys.stopped_through_key(session_id), through, ex=COVERED_LIFETIME_SECONDS)


def get_covered_number(session_id: str) -> int | None:
    value = get_redis().get(redis_keys.stopped_through_key(session_id))
    return int(value) if value is not None else None


async def read_stop_marks(session_ids: Sequence[str]) -> list[str]:
    """The turn stopped last in each of these sessions, in one question."""
    if not session_ids:
        return []
    found: list[bytes | None] = await get_async_redis().mget(
        [redis_keys.stop_key(one) for one in session_ids]
    )  # type: ignore[assignment]
    return [(value or b"").decode() for value in found]


async def listen_for_stops() -> AsyncIterator[StopMessage]:
    """Stops as they are broadcast; ends when the connection does (the poll of the marks covers the gap)."""
    client = create_subscriber_client()
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        try:
            await subscription.subscribe(redis_keys.STOP_CHANNEL)
            async for message in subscription.listen():
                yield msgspec.msgpack.decode(message["data"], type=StopMessage)
        finally:
            await client.aclose()
