"""Hold the open sockets and streams of this web process: bounded per account and address, ended when their credential is.

A credential is looked at again every second, with all others of the process in one statement. That needs no word from
whoever revoked it, in whichever process or by whichever road: logging out, a new password, an account that was switched off,
a key that was revoked or has expired.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal, TypeVar
from uuid import UUID
from weakref import finalize

import msgspec
from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import DatabaseError
from django.db import connection as database
from django.http.response import HttpResponseBase

from config.core.client_address import public_network_of
from copilot.bridge import in_thread
from copilot.errors import TooMany
from copilot.live import counters, keys
from copilot.live.client import RedisDown
from copilot.live.connection_counts import ACCOUNT, COUNTS
from copilot.live.tail import TAIL

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
FLUSH_SECONDS = 0.02
RETRY_AFTER_SECONDS = 30
UNLIMITED = 2**31
FAILED_HANDSHAKES_PER_MINUTE = 60  # of one address; a page tries once and then asks for a sign-in
HANDSHAKE_WINDOW_SECONDS = 60
MOST_BLOCKED_NETWORKS = 10_000
Kind = Literal["sockets", "streams"]


@dataclass(frozen=True, slots=True)
class Credential:
    """Proof of who opened a connection. A key outlives a change of the password, a login does not."""

    user_id: int
    key_id: UUID | None = None
    session_key: str = ""
    password_digest: str = ""

    @classmethod
    def of_login(cls, user: AbstractBaseUser, session_key: str) -> Credential:
        return cls(user.pk, session_key=session_key, password_digest=digest_of(user.password))

    @classmethod
    def of_proof(cls, proof: bytes, user_id: int) -> Credential:
        """Read back what `proof` wrote into a ticket."""
        return msgspec.json.decode(proof, type=cls) if proof else cls(user_id)

    @property
    def proof(self) -> bytes:
        return msgspec.json.encode(self)


def digest_of(password: str) -> str:
    """Enough of a password's hash to see that it changed, and no more; `_REVOKED` makes the same of the row."""
    return hashlib.sha256(password.encode()).hexdigest()[:16]


# Lists as text: an array of ten thousand values costs psycopg twenty times as long, and the event loop waits meanwhile.
_REVOKED = """
SELECT held.place
FROM unnest(
    string_to_array(%s, ',')::int[], string_to_array(%s, ',', '')::uuid[], string_to_array(%s, ','), string_to_array(%s, ',')
) WITH ORDINALITY AS held (user_id, key_id, session_key, password_digest, place)
LEFT JOIN auth_user account ON account.id = held.user_id AND account.is_active
LEFT JOIN copilot_apikey key ON key.id = held.key_id AND key.user_id = held.user_id AND key.revoked_at IS NULL
     AND (key.expires_at IS NULL OR key.expires_at > now())
LEFT JOIN django_session login ON login.session_key = held.session_key AND login.expire_date > now()
WHERE account.id IS NULL
   OR (held.key_id IS NOT NULL AND key.id IS NULL)
   OR (held.session_key <> '' AND login.session_key IS NULL)
   OR (held.password_digest <> ''
       AND held.password_digest <> left(encode(sha256(convert_to(account.password, 'UTF8')), 'hex'), 16))
"""


def revoked_among(credentials: Sequence[Credential]) -> list[Credential]:
    """Ask the database which of these would not be accepted now."""
    if not credentials:
        return []
    lists = [
        ",".join([str(one.user_id) for one in credentials]),
        ",".join([str(one.key_id) if one.key_id else "" for one in credentials]),
        ",".join([one.session_key for one in credentials]),
        ",".join([one.password_digest for one in credentials]),
    ]
    with database.cursor() as cursor:
        cursor.execute(_REVOKED, lists)
        return [credentials[place - 1] for (place,) in cursor.fetchall()]


C = TypeVar("C", bound=Hashable)
_checks: dict[type, Callable[[Sequence[Any]], Iterable[Any]]] = {Credential: revoked_among}


def register_check(credential: type[C], check: Callable[[Sequence[C]], Iterable[C]]) -> None:
    """Name the function that says which credentials of another app's type are revoked."""
    _checks[credential] = check


class Connection:
    """One open socket or stream. `on_revoked` is called on the event loop, once, when its credential is revoked."""

    __slots__ = ("__weakref__", "_counts", "_is_open", "_on_revoked", "credential", "is_revoked")

    def __init__(self, credential: Hashable, *counts: str) -> None:
        self.credential = credential
        self.is_revoked = False
        self._counts = counts
        self._is_open = True
        self._on_revoked: Callable[[], None] | None = None

    def watch(self, on_revoked: Callable[[], None]) -> None:
        """Have this called; again after a new beginning, instead of what was named before."""
        if self._on_revoked is None and self._is_open:
            REGISTRY.add(self)
        self._on_revoked = on_revoked
        if self.is_revoked:
            on_revoked()

    def revoke(self) -> None:
        self.is_revoked = True
        if self._on_revoked is not None:
            self._on_revoked()

    def __del__(self) -> None:
        self.close()  # of a request that was cancelled before it got hold of it

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._on_revoked = None
            COUNTS.forget(*self._counts)
            REGISTRY.remove(self, self._counts)

    def close_with(self, response: HttpResponseBase) -> None:
        """Close when a streaming response ends: also when it is dropped before its first byte was sent."""
        if not response.streaming:
            self.close()
            return
        response._resource_closers.append(self.close)  # type: ignore[attr-defined]  # Django's own list of what ends with it
        finalize(response, self.close)


def open_connection(kind: Kind, credential: Credential, address: str) -> Connection:
    """Count a connection of an account; refused when the account or the address has as many as it may have."""
    who = intern(keys.connections(kind, f"user:{credential.user_id}"))
    network = public_network_of(address)
    where = intern(keys.connections("address", network or "private"))
    address_limit = settings.CONNECTIONS_PER_ADDRESS if network is not None else UNLIMITED
    limit = settings.SOCKETS_PER_ACCOUNT if kind == "sockets" else settings.STREAMS_PER_ACCOUNT
    full = COUNTS.open(who, where, account_limit=limit, address_limit=address_limit)
    if full is not None:
        whose = "your account" if full == ACCOUNT else "your network address"
        what = "connections" if kind == "sockets" else "streams"
        raise TooMany(
            f"Too many open {what} from {whose}. Close some and try again.",
            code="too_many_connections",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    return Connection(credential, who, where)


class HandshakeLimit:
    """Turn away addresses whose handshakes failed to authenticate too often, before anything is looked up.

    Failures are counted in Redis, by all processes together; only a failed handshake pays for that. Each process that
    meets one too many remembers until when, and refuses what comes meanwhile from its own memory.
    """

    def __init__(self) -> None:
        self._blocked_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_blocked(self, address: str) -> bool:
        if not self._blocked_until:
            return False
        network = public_network_of(address)
        return network is not None and self._blocked_until.get(network, 0.0) > time.monotonic()

    def count_failure(self, address: str) -> None:
        network = public_network_of(address)
        if network is None:  # everybody behind an unannounced proxy has the same one
            return
        wait = counters.hit(
            "failed-handshakes", network, limit=FAILED_HANDSHAKES_PER_MINUTE, seconds=HANDSHAKE_WINDOW_SECONDS
        )
        if wait is not None:
            self._block(network, wait)

    def _block(self, network: str, seconds: int) -> None:
        now = time.monotonic()
        with self._lock:
            known = {one: until for one, until in self._blocked_until.items() if until > now}
            known.pop(network, None)
            while len(known) >= MOST_BLOCKED_NETWORKS:
                known.pop(next(iter(known)))
            self._blocked_until = {**known, network: now + seconds}

    def forget(self) -> None:
        with self._lock:
            self._blocked_until = {}


HANDSHAKES = HandshakeLimit()


class Registry:
    """The connections of this process, by credential, and the tasks that look after them while there are any."""

    def __init__(self) -> None:
        self._held: dict[Hashable, list[Connection]] = {}
        self._closed: deque[str] = deque()  # counts that others still see too high; filled by any thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checks: asyncio.Task[None] | None = None
        self._flush: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def check_soon(self) -> None:
        """Look again now: somebody said that an account was closed."""
        self._soon.set()

    def add(self, connection: Connection) -> None:
        self._held.setdefault(connection.credential, []).append(connection)
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._checks is None or self._checks.done():
            self._loop, self._soon = loop, asyncio.Event()
            self._checks = loop.create_task(self._check_for_ever(), name="connections")

    def remove(self, connection: Connection, counts: Sequence[str]) -> None:
        held = self._held.get(connection.credential)
        if held is not None and connection in held:
            held.remove(connection)
            if not held:
                del self._held[connection.credential]
        if counts:
            self._closed.extend(counts)
            with suppress(RuntimeError):  # of a loop that is closed, with all that it served
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._flush_soon)

    def _flush_soon(self) -> None:
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(
                self._flush_closed(), name="closed connections"
            )

    async def _flush_closed(self) -> None:
        """All that are closed within a moment, in one round trip."""
        await asyncio.sleep(FLUSH_SECONDS)
        while self._closed:
            closed = [self._closed.popleft() for _ in range(len(self._closed))]
            try:
                await in_thread(COUNTS.close, closed)
            except RedisDown:
                return  # the counts are written again when Redis is back

    async def _check_for_ever(self) -> None:
        while self._held:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._soon.wait()
            self._soon.clear()
            if self._checks is not asyncio.current_task():
                return
            await self._check()

    async def _check(self) -> None:
        """Neither a database nor a Redis that is away ends anybody's connection; both are asked again in a second."""
        try:
            await in_thread(COUNTS.renew)
        except RedisDown:
            log.warning("connection_counts_not_renewed")
        try:
            revoked = await in_thread(_revoked_of_each_type, list(self._held))
        except DatabaseError as problem:
            log.warning("credential_check_failed problem=%s", type(problem).__name__)
            return
        for credential in revoked:
            for connection in tuple(self._held.get(credential, ())):
                connection.revoke()


def _revoked_of_each_type(credentials: list[Hashable]) -> list[Hashable]:
    revoked: list[Hashable] = []
    for kind, check in _checks.items():
        asked = [one for one in credentials if type(one) is kind]
        if asked:
            revoked += check(asked)
    return revoked


REGISTRY = Registry()
TAIL.on_account_closed = REGISTRY.check_soon
