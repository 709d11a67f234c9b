"""A question aside, in a log of its own: `session_id` of these events is the question's id (A30.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SideStarted:
    asked_in: str  # the session
    asked: str
    kind: Literal["side.started"] = "side.started"


@dataclass(frozen=True, kw_only=True)
class SideExtended:
    offset: int  # in characters of the answer before this delta
    delta: str
    kind: Literal["side.extended"] = "side.extended"


@dataclass(frozen=True, kw_only=True)
class SideEnded:
    outcome: Literal["answered", "stopped", "failed"]
    text: str  # the whole answer, as far as it came
    code: str = ""  # of a failure
    label: str = ""
    kind: Literal["side.ended"] = "side.ended"
