"""What an answer leaves to be done once it has been told (A3.7)."""

from __future__ import annotations

from collections.abc import Iterator

from copilot.agent import titles
from copilot.ports import Errand
from copilot.turns import Ended


def after(ended: Ended, *, full: bool) -> Iterator[Errand]:
    """Decided by what the ending's own statement returned: an ordinary turn asks the database nothing more."""
    if titles.is_due(ended.title, ended.title_origin):
        yield "title"
    if full:
        yield "compaction"
    if ended.goal_state == "active":
        yield "goal"
