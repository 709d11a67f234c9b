"""What lower modules may ask of those above them; bound at boot, so that nothing imports upwards (A0.6)."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class AfterTurn(Protocol):
    def __call__(self, session_id: UUID, token: UUID, keep_through: int | None) -> None: ...


class SendTurn(Protocol):
    def __call__(self, turn_id: UUID) -> None: ...


class _Bound:
    after_turn: AfterTurn
    send_turn: SendTurn


def bind(*, after_turn: AfterTurn, send_turn: SendTurn) -> None:
    _Bound.after_turn = staticmethod(after_turn)
    _Bound.send_turn = staticmethod(send_turn)


def after_turn(session_id: UUID, token: UUID, keep_through: int | None) -> None:
    """Let the session go, or start what must follow (dispatch)."""
    _Bound.after_turn(session_id, token, keep_through)


def send_turn(turn_id: UUID) -> None:
    """Wake a worker for a queued turn (tasks)."""
    _Bound.send_turn(turn_id)
