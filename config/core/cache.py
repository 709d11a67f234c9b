"""Django's cache in our Redis, and the counters of sign-in limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache, RedisCacheClient

from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS

log = structlog.get_logger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
CacheMethod = Callable[Concatenate["SharedCache", P], R]


def _raise_unavailable(act: CacheMethod[P, R]) -> CacheMethod[P, R]:
    @wraps(act)
    def acting(self: SharedCache, /, *args: P.args, **options: P.kwargs) -> R:
        try:
            return act(self, *args, **options)
        except REDIS_OUTAGE_ERRORS as problem:
            raise ServiceUnavailable from problem

    return acting


_clients_by_server: dict[str, RedisCacheClient] = {}


class SharedCache(RedisCache):
    """A cache shared by all processes, with atomic `add` and `incr`."""

    def __init__(self, server: str | list[str], params: dict[str, Any]) -> None:
        where = repr((server, params.get("OPTIONS")))
        super().__init__(server, params)
        self._where = where

    @cached_property
    def _cache(self) -> RedisCacheClient:
        if self._where not in _clients_by_server:
            _clients_by_server[self._where] = super()._cache
        return _clients_by_server[self._where]

    add = _raise_unavailable(RedisCache.add)
    get = _raise_unavailable(RedisCache.get)
    get_many = _raise_unavailable(RedisCache.get_many)
    set = _raise_unavailable(RedisCache.set)
    incr = _raise_unavailable(RedisCache.incr)
    delete = _raise_unavailable(RedisCache.delete)


class JsonSerializer:
    """Store values as JSON, because reading JSON back never runs code."""

    def dumps(self, value: object) -> bytes:
        return json.dumps(value).encode()

    def loads(self, data: bytes) -> object:
        return json.loads(data)


class RateLimitCache(SharedCache):
    """Counters of sign-in limits, shared by all processes.

    While Redis is away each process counts by itself: people can still sign in, and guessing stays limited.
    """

    def __init__(self, server: str | list[str], params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._local = LocMemCache("rate-limits", {"MAX_ENTRIES": 10_000})

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._shared_or_local("get", key, default, version=version)

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        return bool(self._shared_or_local("add", key, value, timeout, version=version))

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        self._shared_or_local("set", key, value, timeout, version=version)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return bool(self._shared_or_local("delete", key, version=version))

    def _shared_or_local(self, act: str, *args: Any, **options: Any) -> Any:
        try:
            return getattr(SharedCache, act)(self, *args, **options)
        except ServiceUnavailable:
            log.warning("rate_limit_cache_unreachable", operation=act)
            return getattr(self._local, act)(*args, **options)
