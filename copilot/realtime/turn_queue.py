"""Wake workers through one Redis list of turn ids, which are pushed with the turn's events and taken in batches.

A wake-up is only a hint. The turn's row is the truth, and the sweep sends wake-ups again that nobody took.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import redis.asyncio

from config.core.redis import create_subscriber_client, get_redis, get_script
from copilot.realtime import redis_keys

WAKEUPS_LIFETIME_SECONDS = 24 * 3600
POLL_SECONDS = 1  # how long Redis may hold a poll: even an empty answer proves that the connection works
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
        """Wait up to a second for an id; None when none came. Raises when Redis does not answer."""
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
