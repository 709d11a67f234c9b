"""The event log: appended in batches, guarded by fences, trimmed, and read from a cursor (T8, A3.8)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest
from config.core.redis import get_async_redis, get_redis
from copilot.realtime import event_log, lease, redis_keys
from copilot.realtime.events import SessionChanged, StepStarted, TextExtended, decode_event
from copilot.realtime.publisher import Publisher
from tests.support.redis_outages import cut_connections, lost_answers
from tests.support.rest_clients import eventually

S = "00000000-0000-4000-8000-000000000001"


@pytest.fixture(autouse=True)
def _clean(redis_clean):
    return redis_clean


def changed(title):
    return SessionChanged(title=title, pinned=False, archived=False, state="idle")


def kinds():
    return [entry.kind for entry in event_log.read_recent(S, count=1000)]


def deltas():
    return [
        decode_event(entry.payload).delta
        for entry in event_log.read_recent(S, count=1000)
        if entry.kind == "text.extended"
    ]


class Desk:
    """A publisher at work, and what it was told."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.recoveries = 0
        self.publisher = Publisher(self._refused, self._recovered)

    def _refused(self, outbox, why) -> None:
        self.refusals.append(why)

    def _recovered(self) -> None:
        self.recoveries += 1

    def open(self, fence=1):
        outbox = self.publisher.create_outbox(session_id=S, turn_id=f"t{fence}", user_id=1, fence=fence)
        self.publisher.enable_outbox(outbox)
        return outbox


@asynccontextmanager
async def publishing():
    desk = Desk()
    work = asyncio.create_task(desk.publisher.run())
    try:
        yield desk
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await get_async_redis().aclose()


async def known_fence(fence):
    await run_in_thread(lease.take_over_lease, S, turn_id="t", token="k", fence=fence)


async def test_a_log_is_trimmed_and_lives_a_day(settings):
    """T8.1"""
    settings.EVENT_LOG_LENGTH = 100
    for _ in range(20):
        await run_in_thread(event_log.append_events, S, [(changed(str(n)), None) for n in range(50)])
    assert 100 <= get_redis().xlen(redis_keys.event_log_key(S)) <= 300
    assert 86_000 < get_redis().ttl(redis_keys.event_log_key(S)) <= 86_400


async def test_a_cursor_reads_what_came_after_it():
    """T8.2"""
    first = await run_in_thread(event_log.append_events, S, [(changed("1"), None)])
    await run_in_thread(event_log.append_events, S, [(changed("2"), None), (changed("3"), None)])
    assert len(await event_log.read_after(S, first)) == 2
    assert await event_log.read_after(S, event_log.get_last_cursor(S)) == []
    assert await event_log.read_after(S, "1-1") is None
    await get_async_redis().aclose()


@pytest.mark.parametrize("cursor", ["", "x", "1", "1-", "-1", "1-2-3", "١-٢", "9" * 30 + "-0"])
def test_nonsense_is_no_cursor(cursor):
    """T8.2"""
    with pytest.raises(InvalidRequest) as refused:
        event_log.check_cursor(cursor)
    assert refused.value.code == "invalid_cursor"


async def test_neighbouring_deltas_grow_together():
    """T8.5: the first at once, then at most every 30 ms; nothing lost, nothing out of order"""
    await known_fence(1)
    async with publishing() as desk:
        outbox = desk.open()
        for number in range(300):
            event = TextExtended(block_id="b", row_id="r", offset=number, delta="x")
            desk.publisher.publish(outbox, event)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await desk.publisher.flush(outbox)
        told = await run_in_thread(deltas)
        assert "".join(told) == "x" * 300
        assert len(told) < 60


async def test_a_text_published_again_is_not_joined_to_the_delta_before_it():
    """T2.5: it begins at the beginning"""
    await known_fence(1)
    async with publishing() as desk:
        outbox = desk.publisher.create_outbox(session_id=S, turn_id="t", user_id=1, fence=1)
        for offset, delta in ((0, "ab"), (2, "cd"), (0, "abcd"), (4, "e")):
            desk.publisher.publish(outbox, TextExtended(block_id="b", row_id="r", offset=offset, delta=delta))
        assert [(event.offset, event.delta) for event in outbox.waiting] == [(0, "abcd"), (0, "abcde")]


async def test_an_older_fence_is_refused_and_told_so():
    """T4.1"""
    await known_fence(5)
    async with publishing() as desk:
        old, new = desk.open(4), desk.open(5)
        desk.publisher.publish(old, StepStarted(step_id="old", round=1))
        desk.publisher.publish(new, StepStarted(step_id="new", round=1))
        await desk.publisher.flush(new)
        await eventually(lambda: desk.refusals == ["refused"])
        assert len(await run_in_thread(kinds)) == 1


async def test_an_unknown_fence_holds_events_until_it_is_known():
    """T2.5: Redis was flushed; nothing is lost"""
    async with publishing() as desk:
        outbox = desk.open(3)
        desk.publisher.publish(outbox, StepStarted(step_id="s", round=1))
        await eventually(lambda: "unknown" in desk.refusals)
        await known_fence(3)
        await desk.publisher.flush(outbox)
        assert await run_in_thread(kinds) == ["step.started"]


async def test_what_postgres_has_decided_needs_no_fence():
    """T5.4: an ending is told whatever Redis remembers"""
    async with publishing() as desk:
        outbox = desk.open(3)
        outbox.fence = None
        desk.publisher.publish(outbox, StepStarted(step_id="s", round=1))
        await desk.publisher.flush(outbox)
        assert await run_in_thread(kinds) == ["step.started"]


async def test_an_abandoned_outbox_keeps_no_task_busy():
    """A turn that is gone, on a Redis that forgot its fence."""
    async with publishing() as desk:
        outbox = desk.open(3)
        desk.publisher._on_refused = lambda box, why: box.waiting.clear()
        desk.publisher.publish(outbox, StepStarted(step_id="s", round=1))
        await eventually(lambda: not desk.publisher._ready)


async def test_a_connection_that_breaks_delays_events_and_loses_none():
    """T8.5, A3.8"""
    await known_fence(1)
    async with publishing() as desk:
        outbox = desk.open()
        for number in range(100):
            desk.publisher.publish(
                outbox, TextExtended(block_id="b", row_id="r", offset=number, delta=str(number % 10))
            )
            if number % 20 == 10:
                await run_in_thread(cut_connections, listening=False)
            await asyncio.sleep(0.002)
        await desk.publisher.flush(outbox)
        text = ""
        for entry in await run_in_thread(event_log.read_recent, S, count=1000):
            event = decode_event(entry.payload)
            text = text[: event.offset] + event.delta
        assert text == "0123456789" * 10


@pytest.mark.parametrize("fence", [1, None], ids=["guarded", "ended"])
@pytest.mark.parametrize("times", [1, 5], ids=["at once", "after a while"])
async def test_a_batch_whose_answer_was_lost_is_logged_once(fence, times):
    """T8.2, T8.5: and what came meanwhile follows it"""
    await known_fence(1)
    async with publishing() as desk:
        outbox = desk.open()
        outbox.fence = fence
        with lost_answers(times):
            for number in range(3):
                desk.publisher.publish(outbox, StepStarted(step_id=str(number), round=1))
                await asyncio.sleep(0)
            await desk.publisher.flush(outbox)
        assert await run_in_thread(steps) == ["0", "1", "2"]


async def test_a_lease_renewed_in_between_forgets_no_batch():
    """T4.2: the fence is written again every ten seconds"""
    await known_fence(1)
    async with publishing() as desk:
        outbox = desk.open()
        desk.publisher.publish(outbox, StepStarted(step_id="0", round=1))
        await desk.publisher.flush(outbox)
        await known_fence(1)
        assert await lease.renew_leases([lease.HeldLease(S, "t", "k", 1)]) == ["renewed"]
        outbox.number = 0  # as a batch that comes again
        desk.publisher.publish(outbox, StepStarted(step_id="0", round=1))
        await desk.publisher.flush(outbox)
        assert await run_in_thread(steps) == ["0"]


async def test_what_a_request_tells_is_logged_once():
    """T8.2: the client tries again by itself when a connection breaks, and hears the cursor all the same"""
    await run_in_thread(
        event_log.append_events, S, [(changed("0"), None)]
    )  # Redis knows the script from now on
    with lost_answers(1):
        cursor = await run_in_thread(event_log.append_events, S, [(changed("1"), None), (changed("2"), None)])
    assert len(await run_in_thread(kinds)) == 3
    assert cursor == await run_in_thread(event_log.get_last_cursor, S)


async def test_a_page_is_logged_only_where_it_was_read():
    """T8.4: what was told since would be lost behind it"""
    cursor = await run_in_thread(event_log.append_events, S, [(changed("1"), None)])
    assert (
        await run_in_thread(
            event_log.append_events, S, [(changed("2"), None)], after=event_log.EMPTY_LOG_CURSOR
        )
        == event_log.LOG_MOVED_ON
    )
    assert (
        await run_in_thread(event_log.append_events, S, [(changed("3"), None)], after=cursor)
        != event_log.LOG_MOVED_ON
    )
    assert len(await run_in_thread(kinds)) == 2


@pytest.mark.parametrize("answer", [b"refused", b"unknown"])
async def test_an_ending_is_published_even_if_the_batch_before_it_failed(answer):
    """T5.4: it came to wait while that batch was under way, and the session is let go with it"""
    await known_fence(2 if answer == b"refused" else 0)
    async with publishing() as desk:
        outbox = desk.open(1)
        outbox.number = 1
        outbox.unanswered = ([StepStarted(step_id="before", round=1)], guarded(fence=1))
        if answer == b"unknown":
            await run_in_thread(get_redis().delete, redis_keys.fence_key(S))
        outbox.fence = None
        desk.publisher.publish(outbox, StepStarted(step_id="ending", round=1))
        release = lease.SessionRelease(
            session_id=S, token="k", keep_through=None, next_turn_id="n", next_token="m"
        )
        async with asyncio.timeout(10):
            assert (await desk.publisher.publish_and_release(outbox, release)).verdict == "released"
        assert (await run_in_thread(steps))[-1] == "ending"


def guarded(fence):
    return event_log.EventBatch(
        session_id=S, user_id=1, fence=fence, events=[("step.started", b"{}")], number=1
    )


def steps():
    return [
        decode_event(entry.payload).step_id
        for entry in event_log.read_recent(S, count=1000)
        if entry.kind == "step.started"
    ]
