"""Django's cache in our Redis, for apps that do not speak to it themselves; away, it says so in our words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.cache.backends.redis import RedisCache, RedisCacheClient

from copilot.errors import Unavailable
from copilot.live.client import RedisDown

P = ParamSpec("P")
R = TypeVar("R")
Act = Callable[Concatenate["SharedCache", P], R]


def _named(act: Act[P, R]) -> Act[P, R]:
    @wraps(act)
    def acting(self: SharedCache, /, *args: P.args, **options: P.kwargs) -> R:
        try:
            return act(self, *args, **options)
        except RedisDown as problem:
            raise Unavailable from problem

    return acting


_clients: dict[str, RedisCacheClient] = {}


class SharedCache(RedisCache):
    """One count for all processes: `add` and `incr` are atomic. Requests and threads share a process's connections."""

    def __init__(self, server: str | list[str], params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._where = repr(server)

    @cached_property
    def _cache(self) -> RedisCacheClient:
        if self._where not in _clients:
            _clients[self._where] = super()._cache
        return _clients[self._where]

    add = _named(RedisCache.add)
    get = _named(RedisCache.get)
    get_many = _named(RedisCache.get_many)
    set = _named(RedisCache.set)
    incr = _named(RedisCache.incr)
    delete = _named(RedisCache.delete)
