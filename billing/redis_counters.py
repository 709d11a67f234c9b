"""Billing's keys in Redis: usage counters, entitlements, holds, the reset lock and short-lived caches of Stripe answers.

Everything here can be rebuilt from Postgres and may vanish at any moment. No other module of billing uses Redis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar
from uuid import uuid4

import redis
from django.conf import settings
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from billing import metrics
from billing.errors import CountersUnavailable
from billing.plans import TIERS, Entitlement, LimitWindow

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = RESPONSE_TIMEOUT_SECONDS = 0.25  # a limit check never waits longer
HOLD_SECONDS = 15 * 60
RESET_LOCK_SECONDS = 30
PENDING_PLAN_SECONDS = 30  # how long a pending plan change is cached
PREVIEW_SECONDS = 15 * 60  # a previewed price is honoured this long
ALERT_REPEAT_SECONDS = 60 * 60  # the same alert is mailed at most once in this time
ENTITLEMENT_COPY_LIFETIME = timedelta(days=8)  # for inactive users; changes are published at once
_NO_OVERRIDE = "-"
_KEY_PREFIX = settings.REDIS_KEY_PREFIX  # several installations may share one Redis


# --- Keys: one hash tag per user, so that a cluster keeps them in one slot ---


def build_cost_key(user_id: int, window: LimitWindow) -> str:
    return f"{_KEY_PREFIX}:billing:cost:{{{user_id}}}:{window.kind[0].lower()}:{window.label}"


def build_entitlement_key(user_id: int) -> str:
    return f"{_KEY_PREFIX}:billing:entitlement:{{{user_id}}}"


def build_holds_key(user_id: int) -> str:
    return f"{_KEY_PREFIX}:billing:holds:{{{user_id}}}"


def build_reset_lock_key(user_id: int) -> str:
    return f"{_KEY_PREFIX}:billing:reset:{{{user_id}}}"


def build_pending_plan_key(user_id: int, age: str) -> str:
    return f"{_KEY_PREFIX}:billing:pending:{{{user_id}}}:{age}"


def build_preview_key(user_id: int, price_id: str) -> str:
    return f"{_KEY_PREFIX}:billing:preview:{{{user_id}}}:{price_id}"


def build_alert_key(about: str) -> str:
    return f"{_KEY_PREFIX}:billing:alert:{sha256(about.encode()).hexdigest()}"


# --- Values ---


@dataclass(frozen=True, kw_only=True)
class WindowAmount:
    """The usage of a window and the version of the row it was read from."""

    used_microdollars: int
    version: int


@dataclass(frozen=True, kw_only=True)
class CachedUsage:
    """The usage that Redis holds for a user; None for a missing copy."""

    daily: WindowAmount | None
    weekly: WindowAmount | None
    entitlement: Entitlement | None


@dataclass(frozen=True, kw_only=True)
class RedisCopy:
    """A row's state to be written to Redis."""

    key: str
    version: int
    value: str
    expires_at: datetime


def build_amount_copy(user_id: int, window: LimitWindow, amount: WindowAmount) -> RedisCopy:
    return RedisCopy(
        key=build_cost_key(user_id, window),
        version=amount.version,
        value=str(amount.used_microdollars),
        expires_at=window.resets_at,
    )


def build_entitlement_copy(user_id: int, entitlement: Entitlement) -> RedisCopy:
    overrides = (entitlement.daily_override_microdollars, entitlement.weekly_override_microdollars)
    value = " ".join(
        [entitlement.tier, *(_NO_OVERRIDE if override is None else str(override) for override in overrides)]
    )
    return RedisCopy(
        key=build_entitlement_key(user_id),
        version=entitlement.version,
        value=value,
        expires_at=timezone.now() + ENTITLEMENT_COPY_LIFETIME,
    )


# --- Connection ---


def get_redis_client() -> redis.Redis:
    return _create_client(settings.REDIS_URL)


@functools.cache
def _create_client(url: str) -> redis.Redis:
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=64,
        timeout=RESPONSE_TIMEOUT_SECONDS,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_timeout=RESPONSE_TIMEOUT_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    return redis.Redis(connection_pool=pool)


def _get_script(name: str) -> Script:
    return _register_script(get_redis_client(), name)


@functools.cache
def _register_script(client: redis.Redis, name: str) -> Script:
    text = (Path(__file__).parent / "scripts" / f"{name}.lua").read_text(encoding="utf-8")
    return client.register_script(text)


def _translate_redis_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Raise CountersUnavailable for every error of the Redis client."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except redis.RedisError as problem:
            raise CountersUnavailable(type(problem).__name__) from problem

    return wrapper


# --- Windows and entitlements ---


@_translate_redis_errors
def read_cached_usage(user_id: int, day: LimitWindow, week: LimitWindow) -> CachedUsage:
    """Read everything a limit check needs in one round trip."""
    keys = [build_cost_key(user_id, day), build_cost_key(user_id, week), build_entitlement_key(user_id)]
    daily, weekly, entitlement = get_redis_client().mget(keys)
    return CachedUsage(
        daily=_parse_amount(daily), weekly=_parse_amount(weekly), entitlement=_parse_entitlement(entitlement)
    )


@_translate_redis_errors
def create_copies(copies: Sequence[RedisCopy]) -> None:
    """Create missing copies and update older ones. Only for readers that found a copy missing."""
    _write_copies("create", copies)


@_translate_redis_errors
def publish_copies(copies: Sequence[RedisCopy]) -> None:
    """Update older copies. A missing copy stays missing, which counts as success."""
    _write_copies("publish", copies)


@_translate_redis_errors
def correct_copies(copies: Sequence[RedisCopy]) -> None:
    """Overwrite older or different copies and delete those with a newer version than the row."""
    _write_copies("correct", copies)


def try_publish_copies(copies: Sequence[RedisCopy]) -> bool:
    """Publish without raising. A failed publish is repeated within a minute."""
    try:
        publish_copies(copies)
    except CountersUnavailable:
        metrics.publish_failures.inc()
        return False
    return True


def _write_copies(mode: Literal["create", "publish", "correct"], copies: Sequence[RedisCopy]) -> None:
    arguments: list[str | int] = [mode]
    for copy in copies:
        arguments += [copy.version, copy.value, int(copy.expires_at.timestamp() * 1000)]
    _get_script("write_copies")(keys=[copy.key for copy in copies], args=arguments)


def _split_words(value: bytes | str | None) -> list[str]:
    text = value.decode() if isinstance(value, bytes) else value or ""
    return text.split()


def _parse_amount(value: bytes | str | None) -> WindowAmount | None:
    match _split_words(value):
        case [version, used] if version.isdecimal() and used.isdecimal():
            return WindowAmount(used_microdollars=int(used), version=int(version))
        case _:
            return None


def _parse_entitlement(value: bytes | str | None) -> Entitlement | None:
    match _split_words(value):
        case [version, tier, daily, weekly] if version.isdecimal() and tier in TIERS:
            return Entitlement(
                tier=tier,
                daily_override_microdollars=int(daily) if daily.isdecimal() else None,
                weekly_override_microdollars=int(weekly) if weekly.isdecimal() else None,
                version=int(version),
            )
        case _:
            return None


# --- Holds ---


@dataclass(frozen=True, kw_only=True)
class HoldResult:
    """The answer to one attempt: stored, a counter was missing, or other turns hold too much."""

    answer: Literal["stored", "missing", "full"]
    held_microdollars: int
    seen: CachedUsage = CachedUsage(daily=None, weekly=None, entitlement=None)


@_translate_redis_errors
def place_hold(
    user_id: int,
    hold_id: str,
    *,
    amount_microdollars: int,
    day: LimitWindow,
    week: LimitWindow,
    limits_by_tier: Mapping[str, tuple[int, int]],
) -> HoldResult:
    """Store a hold if both windows have room beyond what is used and held. A limit of 0 always has room."""
    limits: list[str | int] = []
    for tier, (daily, weekly) in limits_by_tier.items():
        limits += [tier, daily, weekly]
    answer, held, *copies = _get_script("place_hold")(
        keys=[
            build_holds_key(user_id),
            build_cost_key(user_id, day),
            build_cost_key(user_id, week),
            build_entitlement_key(user_id),
        ],
        args=[hold_id, amount_microdollars, HOLD_SECONDS * 1000, *limits],
    )
    seen = CachedUsage(
        daily=_parse_amount(copies[0]),
        weekly=_parse_amount(copies[1]),
        entitlement=_parse_entitlement(copies[2]),
    )
    return HoldResult(answer=answer, held_microdollars=int(held), seen=seen)


@_translate_redis_errors
def renew_hold(user_id: int, hold_id: str, amount_microdollars: int) -> None:
    """Extend a running turn's hold, restoring it if Redis lost it."""
    _get_script("renew_hold")(
        keys=[build_holds_key(user_id)], args=[hold_id, amount_microdollars, HOLD_SECONDS * 1000]
    )


@dataclass(frozen=True, kw_only=True)
class OpenHold:
    hold_id: str
    microdollars: int
    seconds_left: int


@_translate_redis_errors
def read_open_holds(user_id: int) -> list[OpenHold]:
    with get_redis_client().pipeline(transaction=False) as pipe:
        pipe.hgetall(build_holds_key(user_id))
        pipe.time()
        held, (seconds, _) = pipe.execute()
    found = []
    for name, value in held.items():
        amount, expires_at_ms = (int(word) for word in _split_words(value))
        if expires_at_ms > seconds * 1000:
            [hold_id] = _split_words(name)
            left = (expires_at_ms - seconds * 1000) // 1000
            found.append(OpenHold(hold_id=hold_id, microdollars=amount, seconds_left=left))
    return found


@_translate_redis_errors
def release_hold(user_id: int, hold_id: str) -> None:
    get_redis_client().hdel(build_holds_key(user_id), hold_id)


# --- Lock of a paid reset ---


@_translate_redis_errors
def acquire_reset_lock(user_id: int) -> str | None:
    """Return the lock's token, or None if somebody else holds it."""
    token = uuid4().hex
    return (
        token
        if get_redis_client().set(build_reset_lock_key(user_id), token, nx=True, ex=RESET_LOCK_SECONDS)
        else None
    )


@_translate_redis_errors
def release_reset_lock(user_id: int, token: str) -> None:
    _get_script("release_lock")(keys=[build_reset_lock_key(user_id)], args=[token])


# --- Cached answers of Stripe ---


@_translate_redis_errors
def read_pending_plan(user_id: int, age: str) -> str:
    return str(get_redis_client().get(build_pending_plan_key(user_id, age)) or "")


@_translate_redis_errors
def cache_pending_plan(user_id: int, age: str, text: str) -> None:
    get_redis_client().set(build_pending_plan_key(user_id, age), text, ex=PENDING_PLAN_SECONDS)


@_translate_redis_errors
def read_preview_date(user_id: int, price_id: str) -> str:
    return str(get_redis_client().get(build_preview_key(user_id, price_id)) or "")


@_translate_redis_errors
def cache_preview_date(user_id: int, price_id: str, text: str) -> None:
    get_redis_client().set(build_preview_key(user_id, price_id), text, ex=PREVIEW_SECONDS)


# --- Staff alerts ---


@_translate_redis_errors
def claim_staff_alert(about: str) -> bool:
    """Return True if nobody was mailed about this within the hour; the caller then sends the mail."""
    return bool(get_redis_client().set(build_alert_key(about), "1", nx=True, ex=ALERT_REPEAT_SECONDS))


# --- After a restore of Postgres ---


@_translate_redis_errors
def delete_all_copies() -> None:
    """Delete every copy after Postgres was restored; readers and running turns create new ones.

    The reset lock and the alert markers stay: they do not come from rows, and they expire on their own.
    """
    for kind in ("cost", "entitlement", "holds", "pending", "preview"):
        names = get_redis_client().scan_iter(match=f"{_KEY_PREFIX}:billing:{kind}:*", count=500)
        while batch := list(islice(names, 500)):
            with get_redis_client().pipeline(
                transaction=False
            ) as pipe:  # one command per key, because a cluster spreads them over nodes
                for name in batch:
                    pipe.unlink(name)
                pipe.execute()
