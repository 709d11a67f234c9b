"""Group commit: nobody who waits for a row waits for ever, and an outage is waited out (T9.3)."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, connection

from config.core.batching import GroupCommit, run_shielded
from config.core.db import run_in_thread, run_in_thread_with_retry
from copilot.agent.services import ProcessServices, StreamingRow
from copilot.chat.messages import NewMessage
from copilot.models import Message
from tests.support import factories
from tests.support.database_connections import run_in_own_connection
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


async def test_what_comes_together_is_written_together():
    """The first goes at once; the rest wait for each other."""
    batches = []

    def commit(items):
        batches.append(list(items))
        return [item * 2 for item in items]

    group = GroupCommit(commit)
    assert await asyncio.gather(*(group.write(number) for number in range(10))) == [n * 2 for n in range(10)]
    assert sum(batches, []) == list(range(10))
    assert len(batches) <= 2


async def test_one_bad_row_does_not_spoil_its_neighbours():
    def commit(items):
        if "bad" in items:
            raise IntegrityError
        return list(items)

    group = GroupCommit(commit)
    answers = await asyncio.gather(*(group.write(item) for item in ("a", "bad", "b")), return_exceptions=True)
    assert [answers[0], type(answers[1]), answers[2]] == ["a", IntegrityError, "b"]


async def test_an_unexpected_error_reaches_every_waiting_caller():
    """T5.4: a silent commit would hang a turn that beats"""

    def commit(items):
        raise ZeroDivisionError

    group = GroupCommit(commit)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await asyncio.gather(*(group.write(n) for n in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3


async def cut_all():
    """As a restart of the server does; Django's own thread, which nobody mends here, lets go of its connection first."""
    await sync_to_async(lambda: connection.close())()
    await asyncio.to_thread(run_in_own_connection, cut_all_connections)


def cut_all_connections():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def ask(number):
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [number])
        return cursor.fetchone()[0]


async def test_cut_connections_are_replaced_without_anybody_noticing():
    """T9.3: each thread of the bridge has its own"""
    await asyncio.gather(*(run_in_thread(ask, number) for number in range(32)))
    for _ in range(3):
        await cut_all()
        assert await asyncio.gather(*(run_in_thread_with_retry(ask, number) for number in range(32))) == list(
            range(32)
        )


async def test_after_the_first_failure_no_thread_trusts_an_old_connection():
    """T9.3: one call notices, the others do not pay for it"""
    await asyncio.gather(*(run_in_thread(ask, number) for number in range(32)))
    await cut_all()
    with pytest.raises(OperationalError):
        await run_in_thread(ask, 1)
    assert [await run_in_thread(ask, number) for number in range(32)] == list(range(32))


async def test_what_has_begun_is_finished_before_it_is_cancelled():
    """A1.7"""
    done = []

    async def work():
        await asyncio.sleep(0.01)
        done.append(True)

    task = asyncio.create_task(run_shielded(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


async def test_a_rows_end_counts_although_it_shares_a_batch_with_its_checkpoint():
    """T2.5, A3.2: finished text is never overwritten by what was known earlier"""
    turn = await run_in_thread(lambda: factories.turn(factories.session(), "running", fence=1))
    services = ProcessServices(lambda outbox, why: None, lambda: None)
    for _ in range(20):
        row = StreamingRow(row_id=factories.uuid.uuid4(), turn_id=turn.pk, fence=1)
        new = NewMessage(id=row.row_id, turn_id=turn.pk, fence=1, kind="assistant", streaming=True)
        await services.append_row(new)
        services.open_rows.add(row)
        row.extend("half ")
        checkpoints = [asyncio.create_task(services.checkpoint_all()) for _ in range(2)]
        await asyncio.sleep(0)
        row.extend("a loaf")
        await asyncio.gather(services.finish_row(row), services.checkpoint_row(row), *checkpoints)
        stored = await run_in_thread(Message.objects.get, pk=row.row_id)
        assert (stored.content, stored.streaming) == ("half a loaf", False)
