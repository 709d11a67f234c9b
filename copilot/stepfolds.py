"""Which rows of a page fold into "Show 7 steps" (W2.3); the browser's twin is steps.js."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from copilot.events import MessageView

FEWEST = 3  # fewer lines are calmer than a line that hides them
STEPS = frozenset({"reasoning", "tool_call", "tool_result", "assistant"})


@dataclass(frozen=True, kw_only=True)
class Fold:
    key: str  # id of the row behind it, which stays the same when older steps join
    rows: list[MessageView]


def folds(rows: Sequence[MessageView], *, running_turn: str | None) -> list[Fold]:
    """Those of one ended turn in a row, up to the answer or to a word of the user."""
    found: list[Fold] = []
    part: list[MessageView] = []
    for row in [*rows, None]:
        if part and (row is None or row.kind not in STEPS or row.turn_id != part[0].turn_id):
            fold = _fold(part, row)
            if fold is not None and len(fold.rows) >= FEWEST and part[0].turn_id != running_turn:
                found.append(fold)
            part = []
        if row is not None and row.kind in STEPS:
            part.append(row)
    return found


def _fold(part: list[MessageView], following: MessageView | None) -> Fold | None:
    """What may fold away: all but the answer; nothing where neither an answer nor the user's word follows."""
    if part[-1].kind == "assistant":
        return Fold(key=part[-1].id, rows=part[:-1])
    return Fold(key=following.id, rows=part) if following is not None and following.kind == "user" else None
