"""One call for all who ask at the same time: those who come while it runs share the next.

Under load a call costs as much for twenty as for one, and nobody waits longer than for the one that runs and their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Wish(Generic[T, R]):
    """Of one who waits. Asked and not granted, it is asked for alone."""

    __slots__ = ("asked", "granted", "item")

    def __init__(self, item: T) -> None:
        self.item = item
        self.asked = threading.Event()
        self.granted: list[R] = []


class Together(Generic[T, R]):
    """The call is made in a thread of its own, which keeps its connection: those who wait need none."""

    def __init__(
        self, act: Callable[[Sequence[T]], Sequence[R]], *, spoilt_by: type[Exception], name: str
    ) -> None:
        self._act = act  # as many results as items, in their order
        self._spoilt_by = spoilt_by
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._mutex = threading.Lock()
        self._wishes: list[_Wish[T, R]] = []

    def __call__(self, item: T) -> R:
        """Raises what its own call raised: an item that spoils the one for all spoils nobody else's."""
        mine: _Wish[T, R] = _Wish(item)
        with self._mutex:
            self._wishes.append(mine)
            first = len(self._wishes) == 1
        if first:
            self._thread.submit(self._ask)
        mine.asked.wait()
        return mine.granted[0] if mine.granted else self._act([item])[0]

    def _ask(self) -> None:
        with self._mutex:
            wishes, self._wishes = self._wishes, []
        try:
            with suppress(self._spoilt_by):
                results = self._act([wish.item for wish in wishes])
                for wish, result in zip(wishes, results, strict=True):
                    wish.granted.append(result)
        finally:
            for wish in wishes:
                wish.asked.set()
