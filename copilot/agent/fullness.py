"""How full the model's window is, and when the conversation must become shorter (A17.1)."""

from __future__ import annotations

from collections.abc import Sequence

from copilot.agent.metering import estimate
from copilot.events import ContextUse, Tokens
from copilot.rows import Row

LARGE_WINDOW = 200_000  # in tokens; beyond it a fixed room is enough
ROOM_IN_A_LARGE_WINDOW = 20_000
ROOM_DIVISOR = 5  # of any other window, a fifth
UNREAD = ("notice", "reasoning")  # rows that no model is given


def is_due(*, window: int, used: int) -> bool:
    """Whether too little room is left; a window of unknown size is never too full."""
    if not window:
        return False
    room = ROOM_IN_A_LARGE_WINDOW if window > LARGE_WINDOW else window // ROOM_DIVISOR
    return window - used <= room


def prompt_tokens(tokens: Tokens) -> int:
    return tokens.input + tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h


class Fullness:
    """What the next prompt will hold: the last one and its reply as the provider counted, then our estimate."""

    def __init__(self, tokens: int, *, estimated: bool = True) -> None:
        self._tokens = tokens
        self._characters = 0  # added since
        self.estimated = estimated

    @property
    def used(self) -> int:
        return self._tokens + estimate(self._characters)

    def use(self, *, window: int, through: int) -> ContextUse:
        estimated = self.estimated or self._characters > 0
        return ContextUse(tokens=self.used, window=window, through=through, estimated=estimated)

    def add(self, characters: int) -> None:
        self._characters += characters

    def replied(self, tokens: Tokens, *, estimated: bool) -> None:
        """A reply came: its prompt and itself are what the conversation holds now."""
        self._tokens = prompt_tokens(tokens) + tokens.output
        self._characters = 0
        self.estimated = estimated

    def shortened(self, tokens: int) -> None:
        """Estimated until the next real reply (A17.8)."""
        self._tokens = tokens
        self._characters = 0
        self.estimated = True


def remembered(use: ContextUse, rows: Sequence[Row]) -> Fullness | None:
    """From where the session's last turn left it; None when the model no longer reads what it had read then."""
    if not use.tokens:
        return None
    fullness = Fullness(use.tokens, estimated=use.estimated)
    for row in reversed(rows):
        if row.sequence is not None and row.sequence <= use.through:
            return fullness if row.sequence == use.through else None
        if row.kind not in UNREAD:
            fullness.add(len(row.server_context) + len(row.content) + len(str(row.data.get("arguments", ""))))
    return None
