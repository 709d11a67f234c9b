"""Waking a worker: turn ids in one Redis list, pushed with the news of the turn and taken in batches.

A wake-up is a hint. The turn's row is the truth, and the sweep sends again what nobody picked up (T9.2).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import redis.asyncio

from copilot.live import keys
from copilot.live.client import blocking, listening, script

LIFE_SECONDS = 24 * 3600
WAIT_SECONDS = 1  # of one question: an answer, also an empty one, proves that the connection lives
ANSWER_SECONDS = 4.0  # beyond WAIT_SECONDS; a connection that says nothing for longer is given up


def push(turn_id: UUID) -> None:
    script("wake")(keys=[keys.WAKEUPS], args=arguments(turn_id))


def arguments(turn_id: UUID) -> list[str | int]:
    return [str(turn_id), LIFE_SECONDS]


def waiting() -> int:
    return int(blocking().llen(keys.WAKEUPS))


class Bell:
    """A worker's ear: waits for one id, then takes along what else is there."""

    def __init__(self) -> None:
        self._client: redis.asyncio.Redis | None = None

    async def first(self) -> UUID | None:
        """Wait for an id for a moment; None when none came. Raises when Redis does not answer."""
        if self._client is None:
            self._client = listening()
        async with asyncio.timeout(WAIT_SECONDS + ANSWER_SECONDS):
            taken: tuple[bytes, bytes] | None = await self._client.blpop([keys.WAKEUPS], timeout=WAIT_SECONDS)  # type: ignore[assignment]
        return UUID(taken[1].decode()) if taken else None

    async def more(self, most: int) -> list[UUID]:
        """What else is there, at most this many."""
        if self._client is None or most < 1:
            return []
        values: list[bytes] | None = await self._client.lpop(keys.WAKEUPS, most)  # type: ignore[assignment]
        return [UUID(value.decode()) for value in values or ()]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
