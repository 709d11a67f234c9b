"""Signal stops to workers: a broadcast that is quick, and a mark that survives a lost broadcast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from config.core.redis import create_subscriber_client, get_async_redis, get_redis
from copilot.realtime import redis_keys

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
