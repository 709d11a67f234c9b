"""Billing's copies in Redis: use of windows, what accounts are entitled to, holds, the lock of a paid reset, Stripe's last words.

All of it may vanish at any moment: rows make it anew (B1.3). Nothing else in billing imports redis or names its keys.
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

CONNECT_TIMEOUT_SECONDS = RESPONSE_TIMEOUT_SECONDS = 0.25  # nobody waits longer for a copy (B5.8)
HOLD_SECONDS = 15 * 60
RESET_LOCK_SECONDS = 30
PENDING_PLAN_SECONDS = 30  # what Stripe said of a plan's future (B12.4)
PREVIEW_SECONDS = 15 * 60  # a price that was named is charged, if the user decides within them
ALERT_REPEAT_SECONDS = 60 * 60  # the same alert is mailed once in them
ENTITLEMENT_COPY_LIFETIME = timedelta(days=8)  # of a user who stays away; a change of the row acts at once
_NO_OVERRIDE = "-"
_KEY_PREFIX = settings.REDIS_KEY_PREFIX  # several installations may share one Redis


# --- keys: one hash tag per user, so that a cluster holds them together ---------------------------------


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


# --- values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WindowAmount:
    """The use of a window, and which of its row's states that was."""

    used_microdollars: int
    version: int


@dataclass(frozen=True, kw_only=True)
class CachedUsage:
    """What Redis knows of a user; None is what it does not."""

    daily: WindowAmount | None
    weekly: WindowAmount | None
    entitlement: Entitlement | None


@dataclass(frozen=True, kw_only=True)
class RedisCopy:
    """A row's state on its way to Redis."""

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
    value = " ".join([entitlement.tier, *(_NO_OVERRIDE if one is None else str(one) for one in overrides)])
    return RedisCopy(
        key=build_entitlement_key(user_id),
        version=entitlement.version,
        value=value,
        expires_at=timezone.now() + ENTITLEMENT_COPY_LIFETIME,
    )


# --- connection -----------------------------------------------------------------------------------------


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
def _register_script(connected: redis.Redis, name: str) -> Script:
    text = (Path(__file__).parent / "scripts" / f"{name}.lua").read_text(encoding="utf-8")
    return connected.register_script(text)


def _translate_redis_errors(act: Callable[P, T]) -> Callable[P, T]:
    """Whatever Redis says but an answer, callers are told one thing."""

    @functools.wraps(act)
    def named(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return act(*args, **kwargs)
        except redis.RedisError as problem:
            raise CountersUnavailable(type(problem).__name__) from problem

    return named


# --- windows and entitlements (B5) -----------------------------------------------------------------------------


@_translate_redis_errors
def read_cached_usage(user_id: int, day: LimitWindow, week: LimitWindow) -> CachedUsage:
    """All that a check needs, in one round trip."""
    keys = [build_cost_key(user_id, day), build_cost_key(user_id, week), build_entitlement_key(user_id)]
    daily, weekly, entitlement = get_redis_client().mget(keys)
    return CachedUsage(
        daily=_parse_amount(daily), weekly=_parse_amount(weekly), entitlement=_parse_entitlement(entitlement)
    )


@_translate_redis_errors
def create_copies(copies: Sequence[RedisCopy]) -> None:
    """What is missing is made, what is older is raised. Only a reader that found something missing may do this."""
    _write_copies("create", copies)


@_translate_redis_errors
def publish_copies(copies: Sequence[RedisCopy]) -> None:
    """What is there and older is raised; what is missing stays missing, and that is success (B5.4)."""
    _write_copies("publish", copies)


@_translate_redis_errors
def correct_copies(copies: Sequence[RedisCopy]) -> None:
    """Redis and the rows disagree: what is older or other is written, what claims to be newer is deleted (B6.5)."""
    _write_copies("correct", copies)


def try_publish_copies(copies: Sequence[RedisCopy]) -> bool:
    """The same for those who must not fail: a lost publishing heals within a minute (B5.6)."""
    try:
        publish_copies(copies)
    except CountersUnavailable:
        metrics.publish_failures.inc()
        return False
    return True


def _write_copies(how: Literal["create", "publish", "correct"], copies: Sequence[RedisCopy]) -> None:
    arguments: list[str | int] = [how]
    for copy in copies:
        arguments += [copy.version, copy.value, int(copy.expires_at.timestamp() * 1000)]
    _get_script("write")(keys=[copy.key for copy in copies], args=arguments)


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


# --- holds (B6.7) ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HoldResult:
    """The answer of one attempt: stored, a counter was missing, or too much is held by other turns."""

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
    """Store a hold if both windows have room for more than what is used and held; limits of 0 have."""
    limits: list[str | int] = []
    for tier, (daily, weekly) in limits_by_tier.items():
        limits += [tier, daily, weekly]
    answer, held, *copies = _get_script("hold")(
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
    """For a running turn: its hold lives on, and comes back if Redis forgot it (B6.9)."""
    _get_script("renew_hold")(
        keys=[build_holds_key(user_id)], args=[hold_id, amount_microdollars, HOLD_SECONDS * 1000]
    )


@dataclass(frozen=True, kw_only=True)
class OpenHold:
    """What a running turn has reserved, and for how long still."""

    hold_id: str
    microdollars: int
    seconds_left: int


@_translate_redis_errors
def read_open_holds(user_id: int) -> list[OpenHold]:
    """Those that have not run out, by Redis' own clock; nothing is removed by looking."""
    with get_redis_client().pipeline(transaction=False) as pipe:
        pipe.hgetall(build_holds_key(user_id))
        pipe.time()
        held, (seconds, _) = pipe.execute()
    found = []
    for name, value in held.items():
        amount, ends = (int(word) for word in _split_words(value))
        if ends > seconds * 1000:
            [hold_id] = _split_words(name)
            left = (ends - seconds * 1000) // 1000
            found.append(OpenHold(hold_id=hold_id, microdollars=amount, seconds_left=left))
    return found


@_translate_redis_errors
def release_hold(user_id: int, hold_id: str) -> None:
    get_redis_client().hdel(build_holds_key(user_id), hold_id)


# --- the lock of a paid reset (B8.2) --------------------------------------------------------------------


@_translate_redis_errors
def acquire_reset_lock(user_id: int) -> str | None:
    """The token of whoever may reset now; None when somebody else does."""
    token = uuid4().hex
    return (
        token
        if get_redis_client().set(build_reset_lock_key(user_id), token, nx=True, ex=RESET_LOCK_SECONDS)
        else None
    )


@_translate_redis_errors
def release_reset_lock(user_id: int, token: str) -> None:
    _get_script("unlock")(keys=[build_reset_lock_key(user_id)], args=[token])


# --- what Stripe said a moment ago (B12) ----------------------------------------------------------------


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


# --- what staff were told -------------------------------------------------------------------------------


@_translate_redis_errors
def claim_staff_alert(about: str) -> bool:
    """Whether nobody was mailed about this within the hour; whoever asks will mail."""
    return bool(get_redis_client().set(build_alert_key(about), "1", nx=True, ex=ALERT_REPEAT_SECONDS))


# --- after Postgres was restored ------------------------------------------------------------------------


@_translate_redis_errors
def delete_all_copies() -> None:
    """Drop every copy: the rows they were made from are gone. Readers and running turns make new ones.

    The lock of a paid reset and the notes of mails stay: no row stands behind them, and they run out by themselves.
    """
    for kind in ("cost", "entitlement", "holds", "pending", "preview"):
        names = get_redis_client().scan_iter(match=f"{_KEY_PREFIX}:billing:{kind}:*", count=500)
        while batch := list(islice(names, 500)):
            with get_redis_client().pipeline(
                transaction=False
            ) as pipe:  # one at a time: a cluster holds them apart
                for name in batch:
                    pipe.unlink(name)
                pipe.execute()
