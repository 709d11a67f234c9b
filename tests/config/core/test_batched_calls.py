"""One call for all who ask at the same time (L18, L27)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from config.core.batching import BatchedCall
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import until


class Spoilt(Exception):
    pass


class Store:
    """Keeps the first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        if len(self.calls) == 1:
            self.begun.set()
            assert self.may_go_on.wait(PATIENCE_SECONDS)
        if 13 in items:
            raise Spoilt
        return [10 * item for item in items]


@pytest.fixture
def store() -> Store:
    return Store()


def asked_during_the_first(store: Store, items: Sequence[int]) -> list[int | type[Exception]]:
    """Item 1 is being stored; the others come meanwhile, in their order."""
    together = BatchedCall(store, spoilt_by=Spoilt, name="store")
    with ThreadPoolExecutor(len(items) + 1) as pool:
        first = pool.submit(together, 1)
        assert store.begun.wait(PATIENCE_SECONDS)
        others = []
        for number, item in enumerate(items, start=1):
            others.append(pool.submit(together, item))
            until(lambda number=number: len(together._pending) == number)
        store.may_go_on.set()
        assert first.result(PATIENCE_SECONDS) == 10
        ended = [(other.exception(PATIENCE_SECONDS), other) for other in others]
    return [type(problem) if problem else other.result() for problem, other in ended]


def test_who_comes_meanwhile_shares_the_next_call(store: Store):
    """L27: in the order in which they came, each with its own result"""
    assert asked_during_the_first(store, [5, 3, 4]) == [50, 30, 40]
    assert store.calls == [[1], [5, 3, 4]]


def test_an_item_that_fails_the_call_fails_no_other_item(store: Store):
    """L18: a poison update fails alone"""
    assert asked_during_the_first(store, [2, 13, 4]) == [20, Spoilt, 40]
    assert sorted(store.calls[2:]) == [[2], [4], [13]]


def test_an_unexpected_error_is_raised_to_its_caller(store: Store):
    """Nobody is left waiting"""
    with pytest.raises(KeyError):
        BatchedCall(_faulty, spoilt_by=Spoilt, name="store")(1)


def _faulty(items: Sequence[int]) -> list[int]:
    raise KeyError(items[0])
