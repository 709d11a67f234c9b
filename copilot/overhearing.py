"""A socket's ear for one question aside: from its beginning to its end, whatever else the socket follows (A30.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copilot.live.tail import TAIL, CursorLost, Entry, Subscription


class Ear:
    def __init__(self, push: Callable[[str], None], gone: Callable[[Ear], None]) -> None:
        self._push = push
        self._gone = gone
        self._subscription: Subscription | None = None

    async def listen(self, side_id: str, cursor: str) -> None:
        try:
            self._subscription = await TAIL.follow(side_id, cursor, self)
        except CursorLost:
            self.leave()

    def deliver(self, session_id: str, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._push(entry.text())
        if entries[-1].kind == "side.ended":
            self.leave()

    def lost(self, session_id: str) -> None:
        """It is not kept anywhere else: who asked may ask again."""
        self.leave()

    def leave(self) -> None:
        if self._subscription is not None:
            TAIL.leave(self._subscription)
        self._gone(self)
