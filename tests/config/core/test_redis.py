"""Connections of event loops to Redis, which lean on how redis-py sends a command."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Connection

from config.core.redis import get_async_redis


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancellation_during_a_command_is_never_lost(steps):
    """redis-py alone loses it when it arrives in the loop's step in which the write ends"""
    client = get_async_redis()
    await client.ping()

    async def send_many() -> None:
        for _ in range(200):
            await client.set("cancelled", "now")

    sending = asyncio.create_task(send_many())
    for _ in range(steps):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()


async def test_a_connection_answers_after_a_command_was_cancelled():
    client = get_async_redis()
    sending: asyncio.Task[object] = asyncio.create_task(client.set("cancelled", "now"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert await client.echo("still here") == b"still here"


async def test_commands_are_sent_without_a_task_of_their_own(monkeypatch):
    """What redis-py does where a timeout is set: if this fails, look whether our connection class is still needed"""
    monkeypatch.setattr(Connection, "_send_packed_command", None)  # the coroutine it would wrap
    assert await get_async_redis().ping()
