"""What lower modules may ask of those above them; bound at boot, so that nothing imports upwards (A0.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol
from uuid import UUID

from copilot.context import Arrival
from copilot.permissions import Permissions


class Follow(Protocol):
    def __call__(self, session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None: ...


class SendTurn(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The running turn for which something is said: it is stopped with it, and its cost counts there (A21.6)."""

    turn_id: UUID
    fence: int
    budget_microdollars: int


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message the server itself says for a user: a child's prompt, a schedule, a goal's next step."""

    user_id: int
    session_id: UUID
    text: str
    origin: str
    permissions: Permissions
    tier: str = ""
    mode: str = ""
    run_id: str | None = None
    author: str = ""
    parent: Parent | None = None
    arrival: Arrival = field(default_factory=Arrival)


@dataclass(frozen=True, kw_only=True)
class Heard:
    message_id: UUID
    turn_id: UUID  # its own, or the one it waits behind
    queued: bool


class Say(Protocol):
    def __call__(self, said: Said) -> Heard: ...


class Unsay(Protocol):
    def __call__(self, user_id: int, session_id: UUID, message_id: UUID) -> bool: ...


class StopTurn(Protocol):
    def __call__(self, user_id: int, session_id: UUID, turn_id: UUID) -> bool: ...


Errand = Literal["title", "goal", "compaction"]


class SendErrand(Protocol):
    def __call__(self, errand: Errand, turn_id: UUID) -> None: ...


class SendScan(Protocol):
    def __call__(self, file_id: UUID) -> None: ...


Job = Literal["export", "erasure"]


class SendJob(Protocol):
    def __call__(self, job: Job, job_id: UUID) -> None: ...


class Halt(Protocol):
    def __call__(self, session_id: UUID) -> None: ...


class CompactAfter(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


class _Bound:
    follow: Follow
    send_turn: SendTurn
    say: Say
    unsay: Unsay
    stop_turn: StopTurn
    send_errand: SendErrand
    compact_after: CompactAfter
    send_scan: SendScan
    send_job: SendJob
    halt: Halt


def bind(
    *,
    follow: Follow,
    send_turn: SendTurn,
    say: Say,
    unsay: Unsay,
    stop_turn: StopTurn,
    send_errand: SendErrand,
    compact_after: CompactAfter,
    send_scan: SendScan,
    send_job: SendJob,
    halt: Halt,
) -> None:
    _Bound.follow = staticmethod(follow)
    _Bound.send_turn = staticmethod(send_turn)
    _Bound.say = staticmethod(say)
    _Bound.unsay = staticmethod(unsay)
    _Bound.stop_turn = staticmethod(stop_turn)
    _Bound.send_errand = staticmethod(send_errand)
    _Bound.compact_after = staticmethod(compact_after)
    _Bound.send_scan = staticmethod(send_scan)
    _Bound.send_job = staticmethod(send_job)
    _Bound.halt = staticmethod(halt)


def follow(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    """A turn ended and the session was kept for the next one: start it (dispatch)."""
    _Bound.follow(session_id, turn_id, token, keep_through)


def send_turn(turn_id: UUID) -> None:
    """Wake a worker for a queued turn (tasks)."""
    _Bound.send_turn(turn_id)


def say(said: Said) -> Heard:
    """Through the one way in, with its checks; raises what a door would be told (dispatch)."""
    return _Bound.say(said)


def unsay(user_id: int, session_id: UUID, message_id: UUID) -> bool:
    """Take back, for its parent, what is still queued; False when a turn has taken it (dispatch)."""
    return _Bound.unsay(user_id, session_id, message_id)


def stop_turn(user_id: int, session_id: UUID, turn_id: UUID) -> bool:
    """Stop this turn alone, for its parent; False when it had ended (dispatch)."""
    return _Bound.stop_turn(user_id, session_id, turn_id)


def send_errand(errand: Errand, turn_id: UUID) -> None:
    """What an ended turn leaves to be done in the background (tasks)."""
    _Bound.send_errand(errand, turn_id)


def compact_after(turn_id: UUID) -> None:
    """Shorten the conversation that an ended turn left too full, unless it is busy again (dispatch)."""
    _Bound.compact_after(turn_id)


def send_scan(file_id: UUID) -> None:
    """Have a stored file looked through in the background (tasks)."""
    _Bound.send_scan(file_id)


def send_job(job: Job, job_id: UUID) -> None:
    """Work whose row stands, and which a worker does when it can; lost on the way, it is sent again (tasks)."""
    _Bound.send_job(job, job_id)


def halt(session_id: UUID) -> None:
    """End whatever runs or waits in a session that goes (dispatch)."""
    _Bound.halt(session_id)
