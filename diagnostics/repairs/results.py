"""What became of a repair (D8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from uuid import UUID

from diagnostics.audit import State


@dataclass(frozen=True, kw_only=True)
class Skip:
    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """`requested` is always `changed` and the skipped ones together."""

    action: str
    requested: int
    changed: int
    skipped: list[Skip] = field(default_factory=list)
    remaining: int = 0
    dry_run: bool = False
    audit_id: str = ""
    preview_id: str | None = None

    def stored(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "audit_id"}


@dataclass(frozen=True, kw_only=True)
class PreviewGone:
    """How a spent preview is refused (E3)."""

    error: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a repair is to be done to, and until when."""

    ids: Sequence[UUID]
    previewed: bool
    deadline: float  # by the process's own clock
    now: datetime
    reason: str


Reasons = Mapping[UUID, str]  # why an id is left alone; one that is missing here is, or was, changed
States = Mapping[UUID, State]
