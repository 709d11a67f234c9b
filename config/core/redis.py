"""Connections to Redis, made once per process (and per event loop), and the scripts they run."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from django.conf import settings
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript, Script
from redis.connection import HiredisRespSerializer
from redis.retry import Retry

KEY_PREFIX = settings.REDIS_KEY_PREFIX

REDIS_OUTAGE_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, redis.ReadOnlyError)
RedisCommandRefused = (
    redis.ResponseError
)  # errors of a server that answers but refuses: missing rights, a wrong database number

CONNECT_TIMEOUT_SECONDS = 1.0
# A client that only listens sends nothing: without keepalives a vanished server goes unnoticed for two hours.
KEEPALIVE_OPTIONS = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not every system has all of them
}
RESPONSE_TIMEOUT_SECONDS = 2.0  # a script takes well under a millisecond; after this Redis counts as down

_scripts_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncScript]] = WeakKeyDictionary()
_clients_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = WeakKeyDictionary()


@functools.cache
def get_redis() -> redis.Redis:
    """Return the client for synchronous code, safe to share between threads.

    One retry replaces a stale connection. A silent server is asked only once, or a request thread would wait twice as
    long.
    """
    pool = redis.BlockingConnectionPool.from_url(
        settings.REDIS_URL,
        max_connections=64,
        timeout=RESPONSE_TIMEOUT_SECONDS,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_timeout=RESPONSE_TIMEOUT_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
    )
    return redis.Redis(connection_pool=pool)


def get_async_redis() -> redis.asyncio.Redis:
    """Return the client for coroutines, one per event loop."""
    loop = asyncio.get_running_loop()
    client = _clients_by_loop.get(loop)
    if client is None:
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            max_connections=256,
            socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
            socket_timeout=RESPONSE_TIMEOUT_SECONDS,
            retry=AsyncRetry(NoBackoff(), 1),
            retry_on_error=[redis.ConnectionError],
        )
        _use_direct_write_connections(client.connection_pool)
        _clients_by_loop[loop] = client
    return client


class _DirectWriteConnection(redis.asyncio.Connection):
    """Send commands quickly, and never lose a cancellation over it.

    redis-py sends every command through `asyncio.wait_for`. That starts a task each time, and in Python 3.11 it swallows
    a cancellation that arrives while the write is under way: a turn that was stopped at that moment would continue.
    It also packs commands in Python, and those that publish have hundreds of arguments.
    """

    pack_command = staticmethod(HiredisRespSerializer().pack)  # type: ignore[assignment]

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        timeout, self.socket_timeout = self.socket_timeout, None  # without one, redis-py writes directly
        try:
            async with asyncio.timeout(timeout):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            raise redis.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = timeout


def _use_direct_write_connections(pool: redis.asyncio.ConnectionPool) -> None:
    """Mix the direct connection into the class that the URL asks for (TCP, TLS or a Unix socket)."""
    kind = pool.connection_class
    pool.connection_class = type("LeanConnection", (_DirectWriteConnection, kind), {})


def create_subscriber_client() -> redis.asyncio.Redis:
    """Create a separate client for a subscription, whose reads wait without limit."""
    return redis.asyncio.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_timeout=None,
        socket_keepalive=True,
        socket_keepalive_options=KEEPALIVE_OPTIONS,
        health_check_interval=15,
        protocol=2,  # redis-py's handler for RESP3 pushes turns every message into text it then drops
    )


SCRIPT_FOLDERS = (Path(__file__).parent / "scripts", settings.BASE_DIR / "copilot" / "realtime" / "scripts")


@functools.cache
def load_script_source(name: str) -> str:
    [path] = [path for folder in SCRIPT_FOLDERS if (path := folder / f"{name}.lua").exists()]
    return path.read_text(encoding="utf-8")


@functools.cache
def get_script(name: str) -> Script:
    return get_redis().register_script(load_script_source(name))


def get_async_script(name: str) -> AsyncScript:
    scripts = _scripts_by_loop.setdefault(asyncio.get_running_loop(), {})
    if name not in scripts:
        scripts[name] = get_async_redis().register_script(load_script_source(name))
    return scripts[name]
