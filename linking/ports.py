"""What lower modules may ask of those above them; bound at boot, so that nothing imports upwards."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class TellLinked(Protocol):
    def __call__(self, token_id: UUID) -> None: ...


class Deliver(Protocol):
    def __call__(self) -> None: ...


class _Bound:
    tell_linked: TellLinked
    deliver: Deliver


def bind(*, tell_linked: TellLinked, deliver: Deliver) -> None:
    _Bound.tell_linked = staticmethod(tell_linked)
    _Bound.deliver = staticmethod(deliver)


def tell_linked(token_id: UUID) -> None:
    """A token was confirmed: its owner gets a mail, the chat that asked a note (tasks)."""
    _Bound.tell_linked(token_id)


def deliver() -> None:
    """Something was written down for a bot: have it sent (tasks)."""
    _Bound.deliver()
