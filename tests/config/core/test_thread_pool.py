"""Threads that keep a connection: little work stays with one of them, much is spread (P1, P7)."""

from __future__ import annotations

import threading

from config.core.db import LifoThreadPool
from tests.support.timeouts import PATIENCE_SECONDS


def test_who_rested_last_is_asked_first():
    """P7: one after the other, all work finds the same thread, and its connection's plans"""
    with LifoThreadPool(4, "warm") as pool:
        meeting = threading.Barrier(4)
        everybody = {one.result(PATIENCE_SECONDS) for one in [pool.submit(_met, meeting) for _ in range(4)]}
        one_by_one = [pool.submit(threading.get_ident).result(PATIENCE_SECONDS) for _ in range(20)]
    assert len(everybody) == 4
    assert len(set(one_by_one)) == 1


def test_work_that_finds_nobody_resting_is_done_in_its_order():
    with LifoThreadPool(1, "warm") as pool:
        held = threading.Event()
        done: list[int] = []
        pool.submit(held.wait, PATIENCE_SECONDS)
        waiting = [pool.submit(done.append, number) for number in range(10)]
        held.set()
        for one in waiting:
            one.result(PATIENCE_SECONDS)
    assert done == list(range(10))


def test_nothing_is_left_undone_when_it_closes():
    done: list[int] = []
    with LifoThreadPool(3, "warm") as pool:
        for number in range(200):
            pool.submit(done.append, number)
    assert sorted(done) == list(range(200))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("warm")]


def test_a_failure_reaches_the_caller_and_the_thread_continues():
    with LifoThreadPool(1, "warm") as pool:
        assert isinstance(pool.submit(_fail).exception(PATIENCE_SECONDS), KeyError)
        assert pool.submit(lambda: "on").result(PATIENCE_SECONDS) == "on"


def _met(meeting: threading.Barrier) -> int:
    meeting.wait(PATIENCE_SECONDS)
    return threading.get_ident()


def _fail() -> None:
    raise KeyError("x")
