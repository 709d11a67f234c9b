"""Waking a worker: turn ids in one Redis list, pushed with the news of the turn and taken in batches.

A wake-up is a hint. The turn's row is the truth, and the sweep sends again what nobody picked up (T9.2).
"""

from __future__ import annotations

from uuid import UUID

import redis.asyncio

from copilot.live import keys
from copilot.live.client import blocking, listening

LIFE_SECONDS = 24 * 3600


def push(turn_id: UUID) -> None:
    with blocking().pipeline(transaction=False) as pipe:
        pipe.rpush(keys.WAKEUPS, str(turn_id))
        pipe.expire(keys.WAKEUPS, LIFE_SECONDS)
        pipe.execute()


class Bell:
    """A worker's ear: waits for one id, then takes along what else is there."""

    def __init__(self) -> None:
        self._client: redis.asyncio.Redis | None = None

    async def take(self, most: int) -> list[UUID]:
        """At least one id and at most this many; waits for as long as it takes."""
        if self._client is None:
            self._client = listening()
        first = await self._client.blpop([keys.WAKEUPS], timeout=0)
        found = [first[1]]
        if most > 1:
            found += await self._client.lpop(keys.WAKEUPS, most - 1) or []
        return [UUID(value.decode()) for value in found]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
