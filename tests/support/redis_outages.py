"""Cut this process's connections to Redis, before or after a command took effect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.test import override_settings
from redis.asyncio.connection import AbstractConnection as LoopConnection
from redis.connection import Connection

from config.core import redis as core_redis
from config.core.redis import get_redis


def cut_connections(*, listening: bool) -> None:
    """Cut the connections that listen to a channel, or those that do not."""
    server = get_redis()
    number = server.connection_pool.connection_kwargs.get("db", 0)
    for one in server.client_list():
        if int(one["db"]) == number and (int(one["sub"]) > 0) == listening:
            server.client_kill_filter(_id=one["id"], skipme=True)


@contextlib.contextmanager
def lost_answers(times: int) -> Iterator[None]:
    """Let Redis run the next scripts, and break the connection before it can answer."""
    losing = _Losing(times)
    with pytest.MonkeyPatch.context() as patch:
        losing.patch(patch)
        yield
    assert not losing.left, "fewer scripts were sent than should have lost their answers"


class _Losing:
    def __init__(self, times: int) -> None:
        self.left = times
        self._doomed: set[int] = set()  # connections whose next response is lost

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        self._patch_blocking(patch)
        self._patch_on_loop(patch)

    def _sent(self, connection: object, command: object) -> None:
        if self.left and command in ("EVALSHA", "EVAL"):
            self.left -= 1
            self._doomed.add(id(connection))

    def _answered(self, connection: object) -> None:
        if id(connection) in self._doomed:
            self._doomed.discard(id(connection))
            raise redis.ConnectionError("cut before the answer was read")

    def _patch_blocking(self, patch: pytest.MonkeyPatch) -> None:
        send: Callable[..., None] = Connection.send_command
        read = Connection.read_response

        def send_command(connection: Connection, *args: Any, **options: Any) -> None:
            send(connection, *args, **options)
            self._sent(connection, args[0])

        def read_response(connection: Connection, *args: Any, **options: Any) -> object:
            answer = read(connection, *args, **options)
            self._answered(connection)
            return answer

        patch.setattr(Connection, "send_command", send_command)
        patch.setattr(Connection, "read_response", read_response)

    def _patch_on_loop(self, patch: pytest.MonkeyPatch) -> None:
        send, read = LoopConnection.send_command, LoopConnection.read_response

        async def send_command(connection: LoopConnection, *args: Any, **options: Any) -> None:
            await send(connection, *args, **options)
            self._sent(connection, args[0])

        async def read_response(connection: LoopConnection, *args: Any, **options: Any) -> object:
            answer = await read(connection, *args, **options)
            self._answered(connection)
            return answer

        patch.setattr(LoopConnection, "send_command", send_command)
        patch.setattr(LoopConnection, "read_response", read_response)


@contextlib.contextmanager
def redis_away() -> Iterator[None]:
    """Point new clients at a port where nothing listens."""
    with override_settings(REDIS_URL="redis://127.0.0.1:1/0"):
        _forget_connections()
        try:
            yield
        finally:
            _forget_connections()


def _forget_connections() -> None:
    core_redis.get_redis.cache_clear()
    core_redis.get_script.cache_clear()


def make_connection_pool(address: str) -> redis.ConnectionPool:
    import redis

    return redis.BlockingConnectionPool.from_url(address, timeout=0.1, decode_responses=True)
