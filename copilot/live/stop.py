"""Stop: a mark that survives a lost broadcast, and the broadcast that makes it quick (A1.4, T7.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from copilot.live import keys
from copilot.live.client import blocking, listening, on_loop

MARK_SECONDS = 24 * 3600
COVER_SECONDS = 60  # far longer than one turn takes to follow another


class StopNews(msgspec.Struct, array_like=True):
    session_id: str
    turn_id: str


def raise_mark(session_id: str, turn_id: str) -> None:
    """Stop this turn, and no other: a message accepted later starts a turn of another id."""
    with blocking().pipeline(transaction=False) as pipe:
        pipe.set(keys.stop(session_id), turn_id, ex=MARK_SECONDS)
        pipe.publish(keys.STOP_CHANNEL, msgspec.msgpack.encode(StopNews(session_id, turn_id)))
        pipe.execute()


def cover(session_id: str, through: int) -> None:
    """Between two turns: what was accepted up to here does not start by itself any more (T7.3)."""
    blocking().set(keys.stopped_through(session_id), through, ex=COVER_SECONDS)


def covered(session_id: str) -> int | None:
    value = blocking().get(keys.stopped_through(session_id))
    return int(value) if value is not None else None


async def marks(session_ids: Sequence[str]) -> list[str]:
    """The turn stopped last in each of these sessions, in one question."""
    if not session_ids:
        return []
    found: list[bytes | None] = await on_loop().mget([keys.stop(one) for one in session_ids])  # type: ignore[assignment]
    return [(value or b"").decode() for value in found]


async def heard() -> AsyncIterator[StopNews]:
    """Stops as they are broadcast; ends when the connection does (the poll of the marks covers the gap)."""
    client = listening()
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        try:
            await subscription.subscribe(keys.STOP_CHANNEL)
            async for message in subscription.listen():
                yield msgspec.msgpack.decode(message["data"], type=StopNews)
        finally:
            await client.aclose()
