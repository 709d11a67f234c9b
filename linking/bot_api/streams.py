"""How many streams a key has open, and whether it still may (L10)."""

from __future__ import annotations

import time
from typing import ClassVar
from uuid import UUID

from django.conf import settings
from django.core.cache import caches

from copilot.errors import Unavailable
from linking import links
from linking.errors import RateLimited
from linking.models import BotKey

WINDOW_SECONDS = 15  # every open stream is counted once in each, so that one whose process died is forgotten
REMEMBERED_SECONDS = 5.0  # many streams of one key ask one question


class Held:
    """A stream's place among those of its key; its key is looked at again at each keep-alive."""

    _known: ClassVar[dict[UUID, tuple[float, bool]]] = {}  # what this process last heard of keys

    def __init__(self, key: BotKey) -> None:
        self._key_id, self._prefix = key.pk, key.prefix
        self._counted: list[str] = []  # what to take back when it ends in order

    def open(self) -> None:
        """Refused when the key has as many as it may have."""
        number = int(time.time() // WINDOW_SECONDS)
        try:
            before = int(caches["shared"].get(self._name("all", number - 1)) or 0)
            self._count("all", number)
            opened = self._count("opened", number)
        except Unavailable:
            return
        if before + opened > settings.BOT_KEY_STREAMS:
            self.close()
            raise RateLimited(retry_after_seconds=WINDOW_SECONDS)

    def may_go_on(self) -> bool:
        try:
            self._counted.clear()
            self._count("all", int(time.time() // WINDOW_SECONDS))
        except Unavailable:
            pass  # who cannot be counted is not sent away
        asked_at, stands = self._known.get(self._key_id, (0.0, False))
        if not stands or time.monotonic() - asked_at > REMEMBERED_SECONDS:
            stands = links.key_stands(self._key_id)
            self._known[self._key_id] = (time.monotonic(), stands)
        return stands

    def close(self) -> None:
        try:
            while self._counted:
                caches["shared"].incr(self._counted.pop(), -1)
        except (Unavailable, ValueError):
            return  # its window is gone, and the count with it

    def _count(self, what: str, number: int) -> int:
        name = self._name(what, number)
        added = caches["shared"].add(name, 1, 4 * WINDOW_SECONDS)
        self._counted.append(name)
        return 1 if added else int(caches["shared"].incr(name))

    def _name(self, what: str, number: int) -> str:
        return f"streams:{what}:{self._prefix}:{number}"
