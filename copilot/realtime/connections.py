"""Limit the open sockets and streams per account and address, and close them when their credential is revoked.

Counts are shared by all web processes in Redis. Each process has its own field in every count and a key that proves it
is alive: connections of a killed process stop counting when that key expires. Every process also counts its own
connections in memory, so that limits hold while Redis is down and lost counts can be written again.

All credentials of a process are checked every second in one statement. So code that revokes one, in any process and in
any way (sign-out, new password, deactivated account, revoked or expired key), need not notify the sockets.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal, TypeVar
from uuid import UUID
from weakref import finalize

import msgspec
import structlog
from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import DatabaseError
from django.db import connection as database
from django.http.response import HttpResponseBase

from config.core import rate_limits
from config.core.client_address import get_public_network
from config.core.db import run_in_thread
from config.core.errors import TooManyRequests
from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis, get_script
from copilot.realtime import redis_keys
from copilot.realtime.fanout import EVENT_FANOUT

log = structlog.get_logger(__name__)

PROCESS_LIFETIME_SECONDS = 20  # how long connections of a killed process keep counting
PROCESS_RENEW_SECONDS = 5.0
COUNT_LIFETIME_SECONDS = 3_600
COUNT_REWRITE_SECONDS = 900.0  # well before a count expires that has not changed since

REVOCATION_CHECK_SECONDS = 1.0
CLOSE_FLUSH_SECONDS = 0.02
RETRY_AFTER_SECONDS = 30
NO_CONNECTION_LIMIT = 2**31
FAILED_HANDSHAKES_PER_MINUTE = 60  # per address; a page tries once and then asks the person to sign in
HANDSHAKE_WINDOW_SECONDS = 60
MAX_BLOCKED_NETWORKS = 10_000
ConnectionKind = Literal["sockets", "streams"]

ACCOUNT_FULL, ADDRESS_FULL = 1, 2


# --- Counts ------------------------------------------------------------------------------------------


class ConnectionCounts:
    """The connection counts of one process. Safe to call from any thread."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._renew_at = self._rewrite_at = 0.0

    def count_opened(
        self, account: str, address: str, *, account_limit: int, address_limit: int
    ) -> int | None:
        """Count a connection; return ACCOUNT_FULL or ADDRESS_FULL instead at a limit. Without Redis, count only here."""
        with self._lock:
            for name, limit, which in (
                (account, account_limit, ACCOUNT_FULL),
                (address, address_limit, ADDRESS_FULL),
            ):
                if self._held[name] >= limit:
                    return which
            self._held[account] += 1
            self._held[address] += 1
        try:
            full = get_script("open_connection")(
                keys=[account, address, redis_keys.web_process_key(self.process)],
                args=[
                    self.process,
                    redis_keys.web_process_key(""),
                    account_limit,
                    address_limit,
                    PROCESS_LIFETIME_SECONDS,
                    COUNT_LIFETIME_SECONDS,
                ],
            )
        except REDIS_OUTAGE_ERRORS:
            log.warning("connection_count_unavailable")
            self._rewrite_at = 0.0
            return None
        if full:
            self.uncount_locally(account, address)
        return full or None

    def uncount_locally(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._held[name] -= 1
                if self._held[name] <= 0:
                    del self._held[name]

    def count_closed(self, names: list[str]) -> None:
        try:
            get_script("close_connections")(keys=names, args=[self.process])
        except REDIS_OUTAGE_ERRORS:
            self._rewrite_at = 0.0
            raise

    def renew_process(self) -> None:
        """Renew this process's key every few seconds, and write all counts again when Redis lost them or soon will."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        known = get_redis().set(
            redis_keys.web_process_key(self.process), "1", ex=PROCESS_LIFETIME_SECONDS, get=True
        )
        if known is None or now >= self._rewrite_at:
            self._rewrite()
            self._rewrite_at = now + COUNT_REWRITE_SECONDS
        self._renew_at = now + PROCESS_RENEW_SECONDS

    def _rewrite(self) -> None:
        with self._lock:
            held = dict(self._held)
        with get_redis().pipeline(transaction=False) as pipe:
            for name, count in held.items():
                pipe.hset(name, self.process, str(count))
                pipe.expire(name, COUNT_LIFETIME_SECONDS)
            pipe.execute()


CONNECTION_COUNTS = ConnectionCounts()


# --- Credentials -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionCredential:
    """The API key or login that opened a connection. A login ends with a change of the password, a key does not."""

    user_id: int
    key_id: UUID | None = None
    session_key: str = ""
    password_digest: str = ""

    @classmethod
    def from_login(cls, user: AbstractBaseUser, session_key: str) -> ConnectionCredential:
        return cls(user.pk, session_key=session_key, password_digest=digest_password_hash(user.password))

    @classmethod
    def from_proof(cls, proof: bytes, user_id: int) -> ConnectionCredential:
        return msgspec.json.decode(proof, type=cls) if proof else cls(user_id)

    @property
    def proof(self) -> bytes:
        return msgspec.json.encode(self)


def digest_password_hash(password: str) -> str:
    """Shorten a password hash to what shows that it changed. `_SELECT_REVOKED` computes the same from the row."""
    return hashlib.sha256(password.encode()).hexdigest()[:16]


# Lists are passed as text: psycopg needs twenty times as long for an array of ten thousand values, and the event loop waits for it.
_SELECT_REVOKED = """
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


def list_revoked_credentials(credentials: Sequence[ConnectionCredential]) -> list[ConnectionCredential]:
    if not credentials:
        return []
    lists = [
        ",".join([str(credential.user_id) for credential in credentials]),
        ",".join([str(credential.key_id) if credential.key_id else "" for credential in credentials]),
        ",".join([credential.session_key for credential in credentials]),
        ",".join([credential.password_digest for credential in credentials]),
    ]
    with database.cursor() as cursor:
        cursor.execute(_SELECT_REVOKED, lists)
        return [credentials[place - 1] for (place,) in cursor.fetchall()]


C = TypeVar("C", bound=Hashable)
_revocation_checks: dict[type, Callable[[Sequence[Any]], Iterable[Any]]] = {
    ConnectionCredential: list_revoked_credentials
}


def register_revocation_check(credential: type[C], check: Callable[[Sequence[C]], Iterable[C]]) -> None:
    """Register the function that lists revoked credentials of another app's type."""
    _revocation_checks[credential] = check


# --- Open connections --------------------------------------------------------------------------------


class OpenConnection:
    """One open socket or stream. `on_revoked` is called once, on the event loop, when its credential is revoked."""

    __slots__ = ("__weakref__", "_counts", "_is_open", "_on_revoked", "credential", "is_revoked")

    def __init__(self, credential: Hashable, *counts: str) -> None:
        self.credential = credential
        self.is_revoked = False
        self._counts = counts
        self._is_open = True
        self._on_revoked: Callable[[], None] | None = None

    def watch(self, on_revoked: Callable[[], None]) -> None:
        """Call `on_revoked` when the credential is revoked. A second call replaces the callback."""
        if self._on_revoked is None and self._is_open:
            CONNECTION_REGISTRY.add(self)
        self._on_revoked = on_revoked
        if self.is_revoked:
            on_revoked()

    def revoke(self) -> None:
        self.is_revoked = True
        if self._on_revoked is not None:
            self._on_revoked()

    def __del__(self) -> None:
        self.close()  # for a request that was cancelled before it received the connection

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._on_revoked = None
            CONNECTION_COUNTS.uncount_locally(*self._counts)
            CONNECTION_REGISTRY.remove(self, self._counts)

    def close_with(self, response: HttpResponseBase) -> None:
        """Close when a streaming response ends, also when it is dropped before its first byte was sent."""
        if not response.streaming:
            self.close()
            return
        response._resource_closers.append(self.close)  # type: ignore[attr-defined]  # Django calls these at the end
        finalize(response, self.close)


def open_connection(kind: ConnectionKind, credential: ConnectionCredential, address: str) -> OpenConnection:
    """Count and return a connection; raise `TooManyRequests` when the account or the address is at its limit."""
    account_key = intern(redis_keys.connections_key(kind, f"user:{credential.user_id}"))
    network = get_public_network(address)
    address_key = intern(redis_keys.connections_key("address", network or "private"))
    address_limit = settings.CONNECTIONS_PER_ADDRESS if network is not None else NO_CONNECTION_LIMIT
    limit = settings.SOCKETS_PER_ACCOUNT if kind == "sockets" else settings.STREAMS_PER_ACCOUNT
    full = CONNECTION_COUNTS.count_opened(
        account_key, address_key, account_limit=limit, address_limit=address_limit
    )
    if full is not None:
        source = "your account" if full == ACCOUNT_FULL else "your network address"
        noun = "connections" if kind == "sockets" else "streams"
        raise TooManyRequests(
            f"Too many open {noun} from {source}. Close some and try again.",
            code="too_many_connections",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    return OpenConnection(credential, account_key, address_key)


class HandshakeLimit:
    """Block addresses whose handshakes failed to authenticate too often, before anything is looked up.

    All processes count failures together in Redis, which only failed handshakes pay for. A process that sees an address
    exceed the limit remembers until when to block it, and refuses it from memory.
    """

    def __init__(self) -> None:
        self._blocked_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_blocked(self, address: str) -> bool:
        if not self._blocked_until:
            return False
        network = get_public_network(address)
        return network is not None and self._blocked_until.get(network, 0.0) > time.monotonic()

    def count_failure(self, address: str) -> None:
        network = get_public_network(address)
        if network is None:  # everybody behind an undeclared proxy has the same private address
            return
        wait = rate_limits.count_request(
            "failed-handshakes", network, limit=FAILED_HANDSHAKES_PER_MINUTE, seconds=HANDSHAKE_WINDOW_SECONDS
        )
        if wait is not None:
            self._block(network, wait)

    def _block(self, network: str, seconds: int) -> None:
        now = time.monotonic()
        with self._lock:
            blocked = {name: until for name, until in self._blocked_until.items() if until > now}
            blocked.pop(network, None)
            while len(blocked) >= MAX_BLOCKED_NETWORKS:
                blocked.pop(next(iter(blocked)))
            self._blocked_until = {**blocked, network: now + seconds}

    def unblock_all(self) -> None:
        with self._lock:
            self._blocked_until = {}


HANDSHAKES = HandshakeLimit()


class ConnectionRegistry:
    """The connections of this process by credential, and the tasks that check them while there are any."""

    def __init__(self) -> None:
        self._held: dict[Hashable, list[OpenConnection]] = {}
        self._closed: deque[str] = deque()  # shared counts still to be lowered; filled by any thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checks: asyncio.Task[None] | None = None
        self._flush: asyncio.Task[None] | None = None
        self._check_requested = asyncio.Event()

    def check_now(self) -> None:
        self._check_requested.set()

    def add(self, connection: OpenConnection) -> None:
        self._held.setdefault(connection.credential, []).append(connection)
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._checks is None or self._checks.done():
            self._loop, self._check_requested = loop, asyncio.Event()
            self._checks = loop.create_task(self._check_forever(), name="connections")

    def remove(self, connection: OpenConnection, counts: Sequence[str]) -> None:
        held = self._held.get(connection.credential)
        if held is not None and connection in held:
            held.remove(connection)
            if not held:
                del self._held[connection.credential]
        if counts:
            self._closed.extend(counts)
            with suppress(RuntimeError):  # the loop is closed, and so are all its connections
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._flush_soon)

    def _flush_soon(self) -> None:
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(
                self._flush_closed(), name="closed connections"
            )

    async def _flush_closed(self) -> None:
        """Lower the shared counts of all connections that close within a moment, in one round trip."""
        await asyncio.sleep(CLOSE_FLUSH_SECONDS)
        while self._closed:
            closed = [self._closed.popleft() for _ in range(len(self._closed))]
            try:
                await run_in_thread(CONNECTION_COUNTS.count_closed, closed)
            except REDIS_OUTAGE_ERRORS:
                return  # the counts are written again when Redis is back

    async def _check_forever(self) -> None:
        while self._held:
            with suppress(TimeoutError):
                async with asyncio.timeout(REVOCATION_CHECK_SECONDS):
                    await self._check_requested.wait()
            self._check_requested.clear()
            if self._checks is not asyncio.current_task():
                return
            await self._check()

    async def _check(self) -> None:
        """Revoke connections whose credential is revoked. An outage of Postgres or Redis closes no connection."""
        try:
            await run_in_thread(CONNECTION_COUNTS.renew_process)
        except REDIS_OUTAGE_ERRORS:
            log.warning("connection_counts_not_renewed")
        try:
            revoked = await run_in_thread(_list_revoked_by_type, list(self._held))
        except DatabaseError as problem:
            log.warning("credential_check_failed", error_kind=type(problem).__name__)
            return
        for credential in revoked:
            for connection in tuple(self._held.get(credential, ())):
                connection.revoke()


def _list_revoked_by_type(credentials: list[Hashable]) -> list[Hashable]:
    revoked: list[Hashable] = []
    for kind, check in _revocation_checks.items():
        of_kind = [credential for credential in credentials if type(credential) is kind]
        if of_kind:
            revoked += check(of_kind)
    return revoked


CONNECTION_REGISTRY = ConnectionRegistry()
EVENT_FANOUT.on_account_closed = CONNECTION_REGISTRY.check_now
