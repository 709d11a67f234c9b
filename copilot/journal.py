"""What was healed while somebody listens: the sweep's acts, for the record that diagnostics keeps (D8, D10)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Act = Literal["take_over", "override_stop", "send_again", "expire", "start_stranded", "restore"]


@dataclass(frozen=True, kw_only=True)
class Healed:
    """`id` is a turn's, or a session's: of stranded messages, or that Redis forgot; the rest is what it was before."""

    act: Act
    id: UUID
    status: str
    fence: int


_listening: ContextVar[list[Healed] | None] = ContextVar("journal", default=None)


@contextmanager
def listen() -> Iterator[list[Healed]]:
    notes: list[Healed] = []
    token = _listening.set(notes)
    try:
        yield notes
    finally:
        _listening.reset(token)


def note(act: Act, identifier: UUID, *, status: str, fence: int = 0) -> None:
    notes = _listening.get()
    if notes is not None:
        notes.append(Healed(act=act, id=identifier, status=status, fence=fence))
