"""The right to run a turn on a session, and the queue behind it: each act one script (T3, T4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from copilot.live import keys
from copilot.live.client import RedisDown, blocking, on_loop, script, script_on_loop

QUEUE_CAPACITY = 10
LEASE_SECONDS = 30  # renewed every 10; keeps others out, proves no life: that is the beat
EVERYTHING_STAYS = 2**62  # keep-through of a failed turn: all that is queued stays as chips (T7.4)
FENCE_SECONDS = 7 * 24 * 3600  # longer than any worker can sleep and still be believed


@dataclass(frozen=True)
class Member:
    """A pending message as the queue holds it."""

    accept_number: int
    has_run_id: bool
    message_id: str

    def __str__(self) -> str:
        return f"{self.accept_number}:{'r' if self.has_run_id else '-'}:{self.message_id}"

    @classmethod
    def parse(cls, text: str) -> Member:
        number, flag, message_id = text.split(":", 2)
        return cls(int(number), flag == "r", message_id)


@dataclass(frozen=True)
class Claimed:
    pass


@dataclass(frozen=True)
class Waiting:
    position: int
    turn_id: str


@dataclass(frozen=True)
class Full:
    turn_id: str


def claim_or_queue(
    session_id: str, *, turn_id: str, token: str, member: Member | None, order: float
) -> Claimed | Waiting | Full:
    """Take the free session for `turn_id`, or wait behind the turn that has it. Without a member: take or fail."""
    verdict, position, holder = script("claim_or_queue")(
        keys=[keys.lease(session_id), keys.queue(session_id)],
        args=[turn_id, token, str(member) if member else "", order, QUEUE_CAPACITY],
    )
    match verdict:
        case b"claimed":
            return Claimed()
        case b"queued":
            return Waiting(position=position, turn_id=holder.decode())
        case _:
            return Full(turn_id=holder.decode())


class Parting(NamedTuple):
    """How a turn let its session go."""

    verdict: Literal["kept", "released", "lost"]
    remembered: bool  # False: Redis lost the lease since it was guarded, and maybe what the log was told


@dataclass(frozen=True, kw_only=True)
class Release:
    """The last act of a turn: keep the session for the turn that must follow, or let it go (T4.4).

    Chips up to `keep_through` start nothing.
    """

    session_id: str
    token: str
    keep_through: int | None
    next_turn_id: str
    next_token: str

    def keys(self) -> list[str]:
        session_id = self.session_id
        return [keys.lease(session_id), keys.queue(session_id), keys.stopped_through(session_id)]

    def args(self) -> list[str | int]:
        keep_through = "" if self.keep_through is None else self.keep_through
        return [self.token, keep_through, self.next_turn_id, self.next_token]


def queue_up(session_id: str, member: Member, order: float) -> int | None:
    """Wait behind a turn that holds no lease because it waits itself; the position, or None when it is full."""
    position = script("queue_up")(keys=[keys.queue(session_id)], args=[str(member), order, QUEUE_CAPACITY])
    return int(position) or None


def take_or_release(release: Release) -> Parting:
    return parting(script("take_or_release")(keys=release.keys(), args=release.args()))


def parting(answer: tuple[bytes, int]) -> Parting:
    verdict, remembered = answer
    return Parting(verdict.decode(), bool(remembered))  # type: ignore[arg-type]


def is_held(session_id: str) -> bool:
    return bool(blocking().exists(keys.lease(session_id)))


def give_back(session_id: str, token: str) -> bool:
    return bool(script("give_back")(keys=[keys.lease(session_id)], args=[token]))


def take_over(session_id: str, *, turn_id: str, token: str, fence: int) -> bool:
    """Put the session under a higher fence for a turn that changes hands."""
    return bool(
        script("take_over")(
            keys=[keys.lease(session_id), keys.fence(session_id)], args=[turn_id, token, fence, FENCE_SECONDS]
        )
    )


def forget(session_id: str, members: Iterable[Member]) -> None:
    """Remove from the working order what left the queue in Postgres."""
    if names := [str(member) for member in members]:
        blocking().zrem(keys.queue(session_id), *names)


def reorder(session_id: str, orders: dict[Member, float]) -> None:
    if orders:
        blocking().zadd(keys.queue(session_id), {str(member): order for member, order in orders.items()})


def members(session_id: str) -> list[Member]:
    """The queue's working order, head first."""
    names: list[bytes] = blocking().zrange(keys.queue(session_id), 0, -1)  # type: ignore[assignment]
    return [Member.parse(name.decode()) for name in names]


def admitted(session_id: str) -> frozenset[str] | None:
    """Ids of the messages in the queue; None when Redis cannot tell, being away or having forgotten."""
    try:
        with blocking().pipeline(transaction=True) as pipe:
            pipe.exists(keys.EPOCH)
            pipe.zrange(keys.queue(session_id), 0, -1)
            known, names = pipe.execute()
    except RedisDown:
        return None
    return frozenset(Member.parse(name.decode()).message_id for name in names) if known else None


def mend_queue(session_id: str, orders: dict[Member, float], stale: Iterable[Member]) -> None:
    """Put into the working order what Postgres holds, and take out what it no longer does."""
    with blocking().pipeline(transaction=True) as pipe:
        for member in stale:
            pipe.zrem(keys.queue(session_id), str(member))
        if orders:
            pipe.zadd(keys.queue(session_id), {str(member): order for member, order in orders.items()})
            pipe.expire(keys.queue(session_id), 30 * 24 * 3600)
        pipe.execute()


@dataclass(frozen=True)
class Holding:
    """What a worker renews."""

    session_id: str
    turn_id: str
    token: str
    fence: int


async def renew(
    holdings: Sequence[Holding], *, recreate: bool = False
) -> list[Literal["renewed", "guarded", "missing", "lost"]]:
    """All leases of a process in one pipeline; one alone needs none, and so no look whether Redis knows the script."""
    renewal = script_on_loop("renew")
    pipe = on_loop().pipeline(transaction=False) if len(holdings) > 1 else None
    answers = [
        await renewal(
            keys=[keys.lease(holding.session_id), keys.fence(holding.session_id)],
            args=[
                holding.turn_id,
                holding.token,
                holding.fence,
                LEASE_SECONDS,
                FENCE_SECONDS,
                "1" if recreate else "0",
            ],
            client=pipe,
        )
        for holding in holdings
    ]
    return [answer.decode() for answer in (await pipe.execute() if pipe else answers)]


@dataclass(frozen=True)
class LeaseView:
    session_id: str
    turn_id: str
    token: str
    claimed_seconds_ago: float


def all_leases(batch: int = 500) -> Iterable[LeaseView]:
    """Every lease there is, by SCAN; for the sweep that removes those whose turn has ended."""
    client = blocking()
    now = client.time()[0]
    for key in client.scan_iter(match=keys.LEASES, count=batch):
        fields = client.hgetall(key)
        if fields:
            claimed_at = int(fields.get(b"claimed_at", b"0"))
            yield LeaseView(
                session_id=keys.session_of_key(key.decode()),
                turn_id=_text(fields.get(b"turn", b"")),
                token=_text(fields.get(b"token", b"")),
                claimed_seconds_ago=now - claimed_at,
            )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def epoch_is_known() -> bool:
    """False after Redis lost everything, until `mark_epoch`."""
    return bool(blocking().exists(keys.EPOCH))


def mark_epoch() -> None:
    blocking().set(keys.EPOCH, "1")


def forget_epoch() -> None:
    """From now on Redis counts as having lost everything, until `mark_epoch`."""
    blocking().delete(keys.EPOCH)
