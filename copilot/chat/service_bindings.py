"""What lower modules may ask of those above them; bound at boot, so that nothing imports upwards (A0.6)."""

from __future__ import annotations

from typing import Literal, Protocol
from uuid import UUID

from copilot.chat.commands import InternalMessage, SubmitReceipt


class StartKeptTurn(Protocol):
    def __call__(self, session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None: ...


class WakeWorker(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


class SubmitInternalMessage(Protocol):
    def __call__(self, said: InternalMessage) -> SubmitReceipt: ...


class WithdrawQueuedMessage(Protocol):
    def __call__(self, user_id: int, session_id: UUID, message_id: UUID) -> bool: ...


class StopChildTurn(Protocol):
    def __call__(self, user_id: int, session_id: UUID, turn_id: UUID) -> bool: ...


BackgroundJob = Literal["title", "goal", "compaction"]


class EnqueueBackgroundJob(Protocol):
    def __call__(self, errand: BackgroundJob, turn_id: UUID) -> None: ...


class EnqueueScan(Protocol):
    def __call__(self, file_id: UUID) -> None: ...


DataJob = Literal["export", "erasure"]


class EnqueueDataJob(Protocol):
    def __call__(self, job: DataJob, job_id: UUID) -> None: ...


class EndSessionActivity(Protocol):
    def __call__(self, session_id: UUID) -> None: ...


class CompactAfterTurn(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


class _BoundServices:
    follow: StartKeptTurn
    send_turn: WakeWorker
    say: SubmitInternalMessage
    unsay: WithdrawQueuedMessage
    stop_turn: StopChildTurn
    send_errand: EnqueueBackgroundJob
    compact_after: CompactAfterTurn
    send_scan: EnqueueScan
    send_job: EnqueueDataJob
    halt: EndSessionActivity


def bind_services(
    *,
    follow: StartKeptTurn,
    send_turn: WakeWorker,
    say: SubmitInternalMessage,
    unsay: WithdrawQueuedMessage,
    stop_turn: StopChildTurn,
    send_errand: EnqueueBackgroundJob,
    compact_after: CompactAfterTurn,
    send_scan: EnqueueScan,
    send_job: EnqueueDataJob,
    halt: EndSessionActivity,
) -> None:
    _BoundServices.follow = staticmethod(follow)
    _BoundServices.send_turn = staticmethod(send_turn)
    _BoundServices.say = staticmethod(say)
    _BoundServices.unsay = staticmethod(unsay)
    _BoundServices.stop_turn = staticmethod(stop_turn)
    _BoundServices.send_errand = staticmethod(send_errand)
    _BoundServices.compact_after = staticmethod(compact_after)
    _BoundServices.send_scan = staticmethod(send_scan)
    _BoundServices.send_job = staticmethod(send_job)
    _BoundServices.halt = staticmethod(halt)


def start_kept_turn(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    """A turn ended and the session was kept for the next one: start it (dispatch)."""
    _BoundServices.follow(session_id, turn_id, token, keep_through)


def wake_worker(turn_id: UUID) -> None:
    """Wake a worker for a queued turn (tasks)."""
    _BoundServices.send_turn(turn_id)


def submit_internal_message(said: InternalMessage) -> SubmitReceipt:
    """Through the one way in, with its checks; raises what a door would be told (dispatch)."""
    return _BoundServices.say(said)


def withdraw_queued_message(user_id: int, session_id: UUID, message_id: UUID) -> bool:
    """Take back, for its parent, what is still queued; False when a turn has taken it (dispatch)."""
    return _BoundServices.unsay(user_id, session_id, message_id)


def stop_child_turn(user_id: int, session_id: UUID, turn_id: UUID) -> bool:
    """Stop this turn alone, for its parent; False when it had ended (dispatch)."""
    return _BoundServices.stop_turn(user_id, session_id, turn_id)


def enqueue_background_job(errand: BackgroundJob, turn_id: UUID) -> None:
    """What an ended turn leaves to be done in the background (tasks)."""
    _BoundServices.send_errand(errand, turn_id)


def compact_after_turn(turn_id: UUID) -> None:
    """Shorten the conversation that an ended turn left too full, unless it is busy again (dispatch)."""
    _BoundServices.compact_after(turn_id)


def enqueue_scan(file_id: UUID) -> None:
    """Have a stored file looked through in the background (tasks)."""
    _BoundServices.send_scan(file_id)


def enqueue_data_job(job: DataJob, job_id: UUID) -> None:
    """Work whose row stands, and which a worker does when it can; lost on the way, it is sent again (tasks)."""
    _BoundServices.send_job(job, job_id)


def end_session_activity(session_id: UUID) -> None:
    """End whatever runs or waits in a session that goes (dispatch)."""
    _BoundServices.halt(session_id)
