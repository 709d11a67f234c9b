"""Acquire, renew and release session leases, and hold the queue behind them; each step is one atomic script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from config.core.redis import REDIS_OUTAGE_ERRORS, get_async_redis, get_async_script, get_redis, get_script
from copilot.realtime import redis_keys

QUEUE_CAPACITY = 10
# Renewed every 10 seconds. A lease keeps other turns out. Whether its worker is alive is judged by heartbeats.
LEASE_LIFETIME_SECONDS = 30
QUEUE_LIFETIME_SECONDS = 30 * 24 * 3600
KEEP_WHOLE_QUEUE = 2**62  # keep-through of a failed turn: all queued messages stay queued
FENCE_LIFETIME_SECONDS = 7 * 24 * 3600  # longer than a worker can hang and still write


@dataclass(frozen=True)
class QueueMember:
    """A queued message as the sorted set in Redis holds it."""

    accept_number: int
    has_run_id: bool
    message_id: str

    def __str__(self) -> str:
        return f"{self.accept_number}:{'r' if self.has_run_id else '-'}:{self.message_id}"

    @classmethod
    def parse(cls, text: str) -> QueueMember:
        number, flag, message_id = text.split(":", 2)
        return cls(int(number), flag == "r", message_id)


@dataclass(frozen=True)
class SessionClaimed:
    pass


@dataclass(frozen=True)
class QueuedBehindTurn:
    position: int
    turn_id: str


@dataclass(frozen=True)
class QueueFull:
    turn_id: str


def claim_or_queue(
    session_id: str, *, turn_id: str, token: str, member: QueueMember | None, order: float
) -> SessionClaimed | QueuedBehindTurn | QueueFull:
    """Claim the free session for `turn_id`, or queue behind the turn that holds it. Without a member: claim or fail."""
    verdict, position, holder = get_script("claim_or_queue")(
        keys=[redis_keys.lease_key(session_id), redis_keys.queue_key(session_id)],
        args=[turn_id, token, str(member) if member else "", order, QUEUE_CAPACITY],
    )
    match verdict:
        case b"claimed":
            return SessionClaimed()
        case b"queued":
            return QueuedBehindTurn(position=position, turn_id=holder.decode())
        case _:
            return QueueFull(turn_id=holder.decode())


class ReleaseResult(NamedTuple):
    verdict: Literal["kept", "released", "lost"]
    remembered: bool  # False: Redis has lost the lease since, and maybe events of the log too


@dataclass(frozen=True, kw_only=True)
class SessionRelease:
    """The last step of a turn: keep the session for the turn that must follow, or release it.

    Queued messages up to `keep_through` do not start a turn.
    """

    session_id: str
    token: str
    keep_through: int | None
    next_turn_id: str
    next_token: str

    def script_keys(self) -> list[str]:
        session_id = self.session_id
        return [
            redis_keys.lease_key(session_id),
            redis_keys.queue_key(session_id),
            redis_keys.stopped_through_key(session_id),
        ]

    def script_args(self) -> list[str | int]:
        keep_through = "" if self.keep_through is None else self.keep_through
        return [self.token, keep_through, self.next_turn_id, self.next_token]


def enqueue_member(session_id: str, member: QueueMember, order: float) -> int | None:
    """Queue behind a paused turn, which holds no lease; return the position, or None when the queue is full."""
    position = get_script("enqueue_member")(
        keys=[redis_keys.queue_key(session_id)], args=[str(member), order, QUEUE_CAPACITY]
    )
    return int(position) or None


def release_or_keep(release: SessionRelease) -> ReleaseResult:
    return parse_release_result(
        get_script("release_or_keep")(keys=release.script_keys(), args=release.script_args())
    )


def parse_release_result(answer: tuple[bytes, int]) -> ReleaseResult:
    verdict, remembered = answer
    return ReleaseResult(verdict.decode(), bool(remembered))  # type: ignore[arg-type]


def is_session_held(session_id: str) -> bool:
    return bool(get_redis().exists(redis_keys.lease_key(session_id)))


def release_lease(session_id: str, token: str) -> bool:
    return bool(get_script("release_lease")(keys=[redis_keys.lease_key(session_id)], args=[token]))


def take_over_lease(session_id: str, *, turn_id: str, token: str, fence: int) -> bool:
    """Give the session's lease to a turn under a higher fence; False when the fence is already higher."""
    return bool(
        get_script("take_over_lease")(
            keys=[redis_keys.lease_key(session_id), redis_keys.fence_key(session_id)],
            args=[turn_id, token, fence, FENCE_LIFETIME_SECONDS],
        )
    )


def remove_members(session_id: str, members: Iterable[QueueMember]) -> None:
    if names := [str(member) for member in members]:
        get_redis().zrem(redis_keys.queue_key(session_id), *names)


def reorder_members(session_id: str, orders: dict[QueueMember, float]) -> None:
    if orders:
        get_redis().zadd(
            redis_keys.queue_key(session_id), {str(member): order for member, order in orders.items()}
        )


def list_members(session_id: str) -> list[QueueMember]:
    names: list[bytes] = get_redis().zrange(redis_keys.queue_key(session_id), 0, -1)  # type: ignore[assignment]
    return [QueueMember.parse(name.decode()) for name in names]


def list_admitted_ids(session_id: str) -> frozenset[str] | None:
    """Return the ids of the queued messages; None when Redis is down or has lost its data."""
    try:
        with get_redis().pipeline(transaction=True) as pipe:
            pipe.exists(redis_keys.EPOCH_KEY)
            pipe.zrange(redis_keys.queue_key(session_id), 0, -1)
            known, names = pipe.execute()
    except REDIS_OUTAGE_ERRORS:
        return None
    return frozenset(QueueMember.parse(name.decode()).message_id for name in names) if known else None


def repair_queue(session_id: str, orders: dict[QueueMember, float], stale: Iterable[QueueMember]) -> None:
    with get_redis().pipeline(transaction=True) as pipe:
        for member in stale:
            pipe.zrem(redis_keys.queue_key(session_id), str(member))
        if orders:
            pipe.zadd(
                redis_keys.queue_key(session_id), {str(member): order for member, order in orders.items()}
            )
            pipe.expire(redis_keys.queue_key(session_id), QUEUE_LIFETIME_SECONDS)
        pipe.execute()


@dataclass(frozen=True)
class HeldLease:
    """A lease as its worker renews it."""

    session_id: str
    turn_id: str
    token: str
    fence: int


async def renew_leases(
    holdings: Sequence[HeldLease], *, recreate: bool = False
) -> list[Literal["renewed", "guarded", "missing", "lost"]]:
    """Renew all leases of a process in one pipeline. A single one is sent alone, which saves a check for the script."""
    renewal = get_async_script("renew_lease")
    pipe = get_async_redis().pipeline(transaction=False) if len(holdings) > 1 else None
    answers = [
        await renewal(
            keys=[redis_keys.lease_key(holding.session_id), redis_keys.fence_key(holding.session_id)],
            args=[
                holding.turn_id,
                holding.token,
                holding.fence,
                LEASE_LIFETIME_SECONDS,
                FENCE_LIFETIME_SECONDS,
                "1" if recreate else "0",
            ],
            client=pipe,
        )
        for holding in holdings
    ]
    return [answer.decode() for answer in (await pipe.execute() if pipe else answers)]


@dataclass(frozen=True)
class ScannedLease:
    session_id: str
    turn_id: str
    token: str
    claimed_seconds_ago: float


def scan_leases(batch: int = 500) -> Iterable[ScannedLease]:
    """Iterate over all leases by SCAN. For the sweep that removes those whose turn has ended."""
    client = get_redis()
    now = client.time()[0]
    for key in client.scan_iter(match=redis_keys.LEASE_PATTERN, count=batch):
        fields = client.hgetall(key)
        if fields:
            claimed_at = int(fields.get(b"claimed_at", b"0"))
            yield ScannedLease(
                session_id=redis_keys.parse_session_id(key.decode()),
                turn_id=_decode_text(fields.get(b"turn", b"")),
                token=_decode_text(fields.get(b"token", b"")),
                claimed_seconds_ago=now - claimed_at,
            )


def _decode_text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def is_epoch_known() -> bool:
    """Return False after Redis lost everything, until `mark_epoch` is called."""
    return bool(get_redis().exists(redis_keys.EPOCH_KEY))


def mark_epoch() -> None:
    get_redis().set(redis_keys.EPOCH_KEY, "1")


def clear_epoch() -> None:
    """Treat Redis as if it had lost everything, until `mark_epoch` is called."""
    get_redis().delete(redis_keys.EPOCH_KEY)
