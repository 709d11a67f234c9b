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
from billing.errors import CountersDown
from billing.plans import TIERS, Entitlement, Window

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_SECONDS = ANSWER_SECONDS = 0.25  # nobody waits longer for a copy (B5.8)
HOLD_SECONDS = 15 * 60
RESET_LOCK_SECONDS = 30
PENDING_SECONDS = 30  # what Stripe said of a plan's future (B12.4)
PREVIEW_SECONDS = 15 * 60  # a price that was named is charged, if the user decides within them
ALERT_SECONDS = 60 * 60  # the same alert is mailed once in them
ENTITLEMENT_LIFE = timedelta(days=8)  # of a user who stays away; a change of the row acts at once
_NONE = "-"
_PREFIX = settings.REDIS_KEY_PREFIX  # several installations may share one Redis


# --- keys: one hash tag per user, so that a cluster holds them together ---------------------------------


def cost_key(user_id: int, window: Window) -> str:
    return f"{_PREFIX}:billing:cost:{{{user_id}}}:{window.kind[0].lower()}:{window.label}"


def entitlement_key(user_id: int) -> str:
    return f"{_PREFIX}:billing:entitlement:{{{user_id}}}"


def holds_key(user_id: int) -> str:
    return f"{_PREFIX}:billing:holds:{{{user_id}}}"


def reset_key(user_id: int) -> str:
    return f"{_PREFIX}:billing:reset:{{{user_id}}}"


def pending_key(user_id: int, age: str) -> str:
    return f"{_PREFIX}:billing:pending:{{{user_id}}}:{age}"


def preview_key(user_id: int, price_id: str) -> str:
    return f"{_PREFIX}:billing:preview:{{{user_id}}}:{price_id}"


def alert_key(about: str) -> str:
    return f"{_PREFIX}:billing:alert:{sha256(about.encode()).hexdigest()}"


# --- values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The use of a window, and which of its row's states that was."""

    used_microdollars: int
    version: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What Redis knows of a user; None is what it does not."""

    daily: Amount | None
    weekly: Amount | None
    entitlement: Entitlement | None


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A row's state on its way to Redis."""

    key: str
    version: int
    value: str
    expires_at: datetime


def amount_copy(user_id: int, window: Window, amount: Amount) -> Copy:
    return Copy(
        key=cost_key(user_id, window),
        version=amount.version,
        value=str(amount.used_microdollars),
        expires_at=window.resets_at,
    )


def entitlement_copy(user_id: int, entitlement: Entitlement) -> Copy:
    overrides = (entitlement.daily_override_microdollars, entitlement.weekly_override_microdollars)
    value = " ".join([entitlement.tier, *(_NONE if one is None else str(one) for one in overrides)])
    return Copy(
        key=entitlement_key(user_id),
        version=entitlement.version,
        value=value,
        expires_at=timezone.now() + ENTITLEMENT_LIFE,
    )


# --- connection -----------------------------------------------------------------------------------------


def client() -> redis.Redis:
    return _client(settings.REDIS_URL)


@functools.cache
def _client(url: str) -> redis.Redis:
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=64,
        timeout=ANSWER_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    return redis.Redis(connection_pool=pool)


def _script(name: str) -> Script:
    return _registered(client(), name)


@functools.cache
def _registered(connected: redis.Redis, name: str) -> Script:
    text = (Path(__file__).parent / "scripts" / f"{name}.lua").read_text(encoding="utf-8")
    return connected.register_script(text)


def _named(act: Callable[P, T]) -> Callable[P, T]:
    """Whatever Redis says but an answer, callers are told one thing."""

    @functools.wraps(act)
    def named(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return act(*args, **kwargs)
        except redis.RedisError as problem:
            raise CountersDown(type(problem).__name__) from problem

    return named


# --- windows and entitlements (B5) -----------------------------------------------------------------------------


@_named
def read(user_id: int, day: Window, week: Window) -> Seen:
    """All that a check needs, in one round trip."""
    keys = [cost_key(user_id, day), cost_key(user_id, week), entitlement_key(user_id)]
    daily, weekly, entitlement = client().mget(keys)
    return Seen(daily=_amount(daily), weekly=_amount(weekly), entitlement=_entitlement(entitlement))


@_named
def create(copies: Sequence[Copy]) -> None:
    """What is missing is made, what is older is raised. Only a reader that found something missing may do this."""
    _write("create", copies)


@_named
def publish(copies: Sequence[Copy]) -> None:
    """What is there and older is raised; what is missing stays missing, and that is success (B5.4)."""
    _write("publish", copies)


@_named
def correct(copies: Sequence[Copy]) -> None:
    """Redis and the rows disagree: what is older or other is written, what claims to be newer is deleted (B6.5)."""
    _write("correct", copies)


def publish_or_count(copies: Sequence[Copy]) -> bool:
    """The same for those who must not fail: a lost publishing heals within a minute (B5.6)."""
    try:
        publish(copies)
    except CountersDown:
        metrics.publish_failures.inc()
        return False
    return True


def _write(how: Literal["create", "publish", "correct"], copies: Sequence[Copy]) -> None:
    arguments: list[str | int] = [how]
    for copy in copies:
        arguments += [copy.version, copy.value, int(copy.expires_at.timestamp() * 1000)]
    _script("write")(keys=[copy.key for copy in copies], args=arguments)


def _words(value: bytes | str | None) -> list[str]:
    text = value.decode() if isinstance(value, bytes) else value or ""
    return text.split()


def _amount(value: bytes | str | None) -> Amount | None:
    match _words(value):
        case [version, used] if version.isdecimal() and used.isdecimal():
            return Amount(used_microdollars=int(used), version=int(version))
        case _:
            return None


def _entitlement(value: bytes | str | None) -> Entitlement | None:
    match _words(value):
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
class Held:
    """The answer of one attempt: stored, a counter was missing, or too much is held by other turns."""

    answer: Literal["stored", "missing", "full"]
    held_microdollars: int
    seen: Seen = Seen(daily=None, weekly=None, entitlement=None)


@_named
def hold(
    user_id: int,
    hold_id: str,
    *,
    amount_microdollars: int,
    day: Window,
    week: Window,
    limits_by_tier: Mapping[str, tuple[int, int]],
) -> Held:
    """Store a hold if both windows have room for more than what is used and held; limits of 0 have."""
    limits: list[str | int] = []
    for tier, (daily, weekly) in limits_by_tier.items():
        limits += [tier, daily, weekly]
    answer, held, *copies = _script("hold")(
        keys=[
            holds_key(user_id),
            cost_key(user_id, day),
            cost_key(user_id, week),
            entitlement_key(user_id),
        ],
        args=[hold_id, amount_microdollars, HOLD_SECONDS * 1000, *limits],
    )
    seen = Seen(daily=_amount(copies[0]), weekly=_amount(copies[1]), entitlement=_entitlement(copies[2]))
    return Held(answer=answer, held_microdollars=int(held), seen=seen)


@_named
def renew_hold(user_id: int, hold_id: str, amount_microdollars: int) -> None:
    """For a running turn: its hold lives on, and comes back if Redis forgot it (B6.9)."""
    _script("renew_hold")(keys=[holds_key(user_id)], args=[hold_id, amount_microdollars, HOLD_SECONDS * 1000])


@dataclass(frozen=True, kw_only=True)
class OpenHold:
    """What a running turn has reserved, and for how long still."""

    hold_id: str
    microdollars: int
    seconds_left: int


@_named
def open_holds(user_id: int) -> list[OpenHold]:
    """Those that have not run out, by Redis' own clock; nothing is removed by looking."""
    with client().pipeline(transaction=False) as pipe:
        pipe.hgetall(holds_key(user_id))
        pipe.time()
        held, (seconds, _) = pipe.execute()
    found = []
    for name, value in held.items():
        amount, ends = (int(word) for word in _words(value))
        if ends > seconds * 1000:
            [hold_id] = _words(name)
            left = (ends - seconds * 1000) // 1000
            found.append(OpenHold(hold_id=hold_id, microdollars=amount, seconds_left=left))
    return found


@_named
def drop_hold(user_id: int, hold_id: str) -> None:
    client().hdel(holds_key(user_id), hold_id)


# --- the lock of a paid reset (B8.2) --------------------------------------------------------------------


@_named
def lock_reset(user_id: int) -> str | None:
    """The token of whoever may reset now; None when somebody else does."""
    token = uuid4().hex
    return token if client().set(reset_key(user_id), token, nx=True, ex=RESET_LOCK_SECONDS) else None


@_named
def unlock_reset(user_id: int, token: str) -> None:
    _script("unlock")(keys=[reset_key(user_id)], args=[token])


# --- what Stripe said a moment ago (B12) ----------------------------------------------------------------


@_named
def read_pending(user_id: int, age: str) -> str:
    return str(client().get(pending_key(user_id, age)) or "")


@_named
def keep_pending(user_id: int, age: str, text: str) -> None:
    client().set(pending_key(user_id, age), text, ex=PENDING_SECONDS)


@_named
def read_preview(user_id: int, price_id: str) -> str:
    return str(client().get(preview_key(user_id, price_id)) or "")


@_named
def keep_preview(user_id: int, price_id: str, text: str) -> None:
    client().set(preview_key(user_id, price_id), text, ex=PREVIEW_SECONDS)


# --- what staff were told -------------------------------------------------------------------------------


@_named
def is_news(about: str) -> bool:
    """Whether nobody was mailed about this within the hour; whoever asks will mail."""
    return bool(client().set(alert_key(about), "1", nx=True, ex=ALERT_SECONDS))


# --- after Postgres was restored ------------------------------------------------------------------------


@_named
def forget_all() -> None:
    """Drop every copy: the rows they were made from are gone. Readers and running turns make new ones.

    The lock of a paid reset and the notes of mails stay: no row stands behind them, and they run out by themselves.
    """
    for kind in ("cost", "entitlement", "holds", "pending", "preview"):
        names = client().scan_iter(match=f"{_PREFIX}:billing:{kind}:*", count=500)
        while batch := list(islice(names, 500)):
            with client().pipeline(transaction=False) as pipe:  # one at a time: a cluster holds them apart
                for name in batch:
                    pipe.unlink(name)
                pipe.execute()
