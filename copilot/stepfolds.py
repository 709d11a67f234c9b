"""Which rows of a page fold into "Show 7 steps" (W2.3); the browser's twin is steps.js."""

from __future__ import annotations

from collections.abc import Sequence

from copilot.events import MessageView

FEWEST = 3  # fewer lines are calmer than a line that hides them
STEPS = frozenset({"reasoning", "tool_call", "tool_result", "assistant"})


def folds(rows: Sequence[MessageView], *, running_turn: str | None) -> list[list[MessageView]]:
    """Those of one ended turn in a row, up to the answer or to a word of the user."""
    found: list[list[MessageView]] = []
    part: list[MessageView] = []
    for row in [*rows, None]:
        if part and (row is None or row.kind not in STEPS or row.turn_id != part[0].turn_id):
            body = _body(part, row)
            if len(body) >= FEWEST and part[0].turn_id != running_turn:
                found.append(body)
            part = []
        if row is not None and row.kind in STEPS:
            part.append(row)
    return found


def _body(part: list[MessageView], following: MessageView | None) -> list[MessageView]:
    """What may fold away: all but the answer; nothing where neither an answer nor the user's word follows."""
    if part[-1].kind == "assistant":
        return part[:-1]
    return part if following is not None and following.kind == "user" else []
