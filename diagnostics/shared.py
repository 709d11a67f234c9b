"""A value that is made once for all who want it at about the same time (D4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Made again when it is old; whoever comes meanwhile waits for the one that makes it."""

    def __init__(self, make: Callable[[], T], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._values: list[T] = []  # one, or none yet
        self.computations = 0

    def get(self) -> T:
        with self._lock:
            if not self._values or time.monotonic() - self._made_at >= self._seconds:
                self._values = [self._make()]
                self._made_at = time.monotonic()
                self.computations += 1
            return self._values[0]

    def forget(self) -> None:
        with self._lock:
            self._values = []
