"""Synchronous views share a bounded set of threads and connections, and a stream that waits holds none."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connection

from config.core import db
from config.http import handler
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@sync_to_async
def ask() -> int:
    return backend()


async def served(act) -> object:
    """As the application does it, with Django's own context inside."""
    found = []

    async def application(scope, receive, send) -> None:
        async with ThreadSensitiveContext():
            found.append(await act())

    await handler.ThreadPoolMiddleware(application)({"type": "http", "path": "/"}, None, None)
    return found[0]


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    pool = db.LifoThreadPool(4, "few")
    monkeypatch.setattr(handler, "_web_threads", pool)
    yield
    number = len(pool._threads)
    meeting = threading.Barrier(max(1, number))
    for one in [pool.submit(_closed, meeting) for _ in range(number)]:
        one.result(PATIENCE_SECONDS)
    pool.shutdown()


def _closed(meeting: threading.Barrier) -> None:
    """In every thread once: all of them meet before the first is done."""
    meeting.wait(PATIENCE_SECONDS)
    connection.close()


def test_a_crowd_shares_few_connections_and_the_next_find_them_open():
    async def crowd() -> set[object]:
        return set(await asyncio.gather(*(served(ask) for _ in range(40))))

    first = asyncio.run(crowd())
    assert len(first) <= 4
    assert asyncio.run(crowd()) & first


def test_a_context_left_by_an_earlier_request_changes_nothing():
    """A server hands the context of one request on to the next of its connection: nobody gets a thread of his own by that."""
    names: set[str] = set()

    async def requests() -> None:
        over = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(over)
        for _ in range(3):
            names.add(str(await served(sync_to_async(lambda: threading.current_thread().name))))

    asyncio.run(requests())
    assert all(name.startswith("few") for name in names), names


def test_who_waits_between_two_calls_holds_no_thread():
    """More streams than threads wait at once, each after a call, and others are served meanwhile."""

    async def streams() -> list[object]:
        waiting, over = asyncio.Barrier(13), asyncio.Event()

        async def stream() -> object:
            await ask()
            await waiting.wait()
            await over.wait()
            return await ask()

        begun = [asyncio.create_task(served(stream)) for _ in range(12)]
        await waiting.wait()
        assert await served(ask)
        over.set()
        return await asyncio.gather(*begun)

    assert len(asyncio.run(asyncio.wait_for(streams(), 30))) == 12


def test_a_connection_that_broke_meanwhile_is_replaced_before_the_next_request():
    async def twice() -> tuple[object, object]:
        before = await served(ask)
        await asyncio.get_running_loop().run_in_executor(None, _end, before)
        return before, await served(ask)

    before, after = asyncio.run(twice())
    assert before != after


def _end(backend_pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [backend_pid])
    connection.close()
