"""Waking a worker: turn ids in one Redis list, pushed with the news of the turn and taken in batches.

A wake-up is a hint. The turn's row is the truth, and the sweep sends again what nobody picked up (T9.2).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import redis.asyncio

from config.core.redis import create_subscriber_client, get_redis, get_script
from copilot.realtime import redis_keys

WAKEUPS_LIFETIME_SECONDS = 24 * 3600
POLL_SECONDS = 1  # of one question: an answer, also an empty one, proves that the connection lives
ANSWER_TIMEOUT_SECONDS = 4.0  # beyond WAIT_SECONDS; a connection that says nothing for longer is given up


def push_wakeup(turn_id: UUID) -> None:
    get_script("wake")(keys=[redis_keys.WAKEUPS_KEY], args=build_wake_arguments(turn_id))


def build_wake_arguments(turn_id: UUID) -> list[str | int]:
    return [str(turn_id), WAKEUPS_LIFETIME_SECONDS]


def count_wakeups() -> int:
    return int(get_redis().llen(redis_keys.WAKEUPS_KEY))


class TurnQueueReader:
    """A worker's ear: waits for one id, then takes along what else is there."""

    def __init__(self) -> None:
        self._client: redis.asyncio.Redis | None = None

    async def wait_for_turn(self) -> UUID | None:
        """Wait for an id for a moment; None when none came. Raises when Redis does not answer."""
        if self._client is None:
            self._client = create_subscriber_client()
        async with asyncio.timeout(POLL_SECONDS + ANSWER_TIMEOUT_SECONDS):
            taken: tuple[bytes, bytes] | None = await self._client.blpop(
                [redis_keys.WAKEUPS_KEY], timeout=POLL_SECONDS
            )  # type: ignore[assignment]
        return UUID(taken[1].decode()) if taken else None

    async def take_more(self, most: int) -> list[UUID]:
        """What else is there, at most this many."""
        if self._client is None or most < 1:
            return []
        values: list[bytes] | None = await self._client.lpop(redis_keys.WAKEUPS_KEY, most)  # type: ignore[assignment]
        return [UUID(value.decode()) for value in values or ()]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
