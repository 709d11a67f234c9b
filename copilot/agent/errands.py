"""What an answer leaves to be done once it has been told (A3.7)."""

from __future__ import annotations

from collections.abc import Iterator

from copilot.agent import titles
from copilot.ports import Errand
from copilot.turns import Ended


def after(ended: Ended, *, full: bool) -> Iterator[Errand]:
    """Decided by what the ending's own statement returned: an ordinary turn asks the database nothing more.

    A sub-session is listed by the prompt it was given: no model is paid for a title nobody looks for.
    """
    if not ended.child and titles.is_due(ended.title, ended.title_origin):
        yield "title"
    if full:
        yield "compaction"
    if ended.goal_state == "active":
        yield "goal"
