"""Count the streams that a bot's key has open, and end them when it is revoked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.core.cache import caches

from copilot import connections
from copilot.errors import Unavailable
from linking import links
from linking.errors import RateLimited
from linking.models import BotKey

WINDOW_SECONDS = 15  # every open stream is counted once in each, so that one whose process died is forgotten


@dataclass(frozen=True, slots=True)
class BotCredential:
    key_id: UUID


def revoked_among(credentials: Sequence[BotCredential]) -> list[BotCredential]:
    """One statement for all keys that have a stream open in this process."""
    standing = links.standing_keys([one.key_id for one in credentials])
    return [one for one in credentials if one.key_id not in standing]


connections.register_check(BotCredential, revoked_among)


class Held:
    """A stream's place among those of its key; its `connection` ends with the key."""

    def __init__(self, key: BotKey) -> None:
        self.connection = connections.Connection(BotCredential(key.pk))
        self._prefix = key.prefix
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

    def count_again(self) -> None:
        """Be counted in the window that began meanwhile."""
        try:
            self._counted.clear()
            self._count("all", int(time.time() // WINDOW_SECONDS))
        except Unavailable:
            return  # who cannot be counted is not sent away

    def close(self) -> None:
        self.connection.close()
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
