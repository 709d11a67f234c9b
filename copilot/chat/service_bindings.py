"""Let lower modules call services of higher ones without importing them; bound when Django starts."""

from __future__ import annotations

from typing import Literal, Protocol
from uuid import UUID

from copilot.chat.commands import InternalMessage, SubmitReceipt


class StartKeptTurn(Protocol):
    def __call__(self, session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None: ...


class WakeWorker(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


class SubmitInternalMessage(Protocol):
    def __call__(self, message: InternalMessage, /) -> SubmitReceipt: ...


class WithdrawQueuedMessage(Protocol):
    def __call__(self, user_id: int, session_id: UUID, message_id: UUID) -> bool: ...


class StopChildTurn(Protocol):
    def __call__(self, user_id: int, session_id: UUID, turn_id: UUID) -> bool: ...


BackgroundJob = Literal["title", "goal", "compaction"]


class EnqueueBackgroundJob(Protocol):
    def __call__(self, job: BackgroundJob, turn_id: UUID, /) -> None: ...


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
    start_kept_turn: StartKeptTurn
    wake_worker: WakeWorker
    submit_internal_message: SubmitInternalMessage
    withdraw_queued_message: WithdrawQueuedMessage
    stop_child_turn: StopChildTurn
    enqueue_background_job: EnqueueBackgroundJob
    compact_after_turn: CompactAfterTurn
    enqueue_scan: EnqueueScan
    enqueue_data_job: EnqueueDataJob
    end_session_activity: EndSessionActivity


def bind_services(
    *,
    start_kept_turn: StartKeptTurn,
    wake_worker: WakeWorker,
    submit_internal_message: SubmitInternalMessage,
    withdraw_queued_message: WithdrawQueuedMessage,
    stop_child_turn: StopChildTurn,
    enqueue_background_job: EnqueueBackgroundJob,
    compact_after_turn: CompactAfterTurn,
    enqueue_scan: EnqueueScan,
    enqueue_data_job: EnqueueDataJob,
    end_session_activity: EndSessionActivity,
) -> None:
    _BoundServices.start_kept_turn = staticmethod(start_kept_turn)
    _BoundServices.wake_worker = staticmethod(wake_worker)
    _BoundServices.submit_internal_message = staticmethod(submit_internal_message)
    _BoundServices.withdraw_queued_message = staticmethod(withdraw_queued_message)
    _BoundServices.stop_child_turn = staticmethod(stop_child_turn)
    _BoundServices.enqueue_background_job = staticmethod(enqueue_background_job)
    _BoundServices.compact_after_turn = staticmethod(compact_after_turn)
    _BoundServices.enqueue_scan = staticmethod(enqueue_scan)
    _BoundServices.enqueue_data_job = staticmethod(enqueue_data_job)
    _BoundServices.end_session_activity = staticmethod(end_session_activity)


def start_kept_turn(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    _BoundServices.start_kept_turn(session_id, turn_id, token, keep_through)


def wake_worker(turn_id: UUID) -> None:
    _BoundServices.wake_worker(turn_id)


def submit_internal_message(message: InternalMessage) -> SubmitReceipt:
    return _BoundServices.submit_internal_message(message)


def withdraw_queued_message(user_id: int, session_id: UUID, message_id: UUID) -> bool:
    return _BoundServices.withdraw_queued_message(user_id, session_id, message_id)


def stop_child_turn(user_id: int, session_id: UUID, turn_id: UUID) -> bool:
    return _BoundServices.stop_child_turn(user_id, session_id, turn_id)


def enqueue_background_job(job: BackgroundJob, turn_id: UUID) -> None:
    _BoundServices.enqueue_background_job(job, turn_id)


def compact_after_turn(turn_id: UUID) -> None:
    _BoundServices.compact_after_turn(turn_id)


def enqueue_scan(file_id: UUID) -> None:
    _BoundServices.enqueue_scan(file_id)


def enqueue_data_job(job: DataJob, job_id: UUID) -> None:
    _BoundServices.enqueue_data_job(job, job_id)


def end_session_activity(session_id: UUID) -> None:
    _BoundServices.end_session_activity(session_id)
