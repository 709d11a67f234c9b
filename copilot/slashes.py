"""Commands typed as a message, such as `/rename Boats`: read at the door, the same at every door (A30.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from copilot.marking import gettext_noop as _

_SLASH = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Slash:
    """One of the commands there are, as menus show it."""

    name: str
    does: str
    takes: str = ""  # what goes behind it; empty: nothing may


COMMANDS = (
    Slash(name="new", takes="[message]", does=_("Start a new chat")),
    Slash(name="undo", does=_("Take back the last turn")),
    Slash(name="btw", takes="question", does=_("Ask something aside")),
    Slash(name="goal", takes="[text, pause, resume or clear]", does=_("Work towards a goal")),
    Slash(name="compact", takes="[focus]", does=_("Summarise this chat to make room")),
    Slash(name="stop", does=_("Stop the running turn")),
    Slash(name="rename", takes="title", does=_("Rename this chat")),
)
_BY_NAME = {one.name: one for one in COMMANDS}


@dataclass(frozen=True)
class Typed:
    name: str
    rest: str

    @property
    def is_known(self) -> bool:
        """A name that takes nothing, with words behind it, is a sentence: nothing is undone by accident."""
        known = _BY_NAME.get(self.name)
        return known is not None and bool(known.takes or not self.rest)

    def hint(self) -> str:
        """What to tell somebody whose command was sent as text."""
        if self.name in _BY_NAME:
            return f"/{self.name} takes no words, so this was sent as a message."
        names = ", ".join(f"/{one.name}" for one in COMMANDS)
        return f"There is no command /{self.name}, so this was sent as a message. There are {names}."


def typed(text: str) -> Typed | None:
    """The command a text is written as, known or not; None for plain words, paths and code."""
    found = _SLASH.fullmatch(text.strip())
    return Typed(found[1], (found[2] or "").strip()) if found else None
