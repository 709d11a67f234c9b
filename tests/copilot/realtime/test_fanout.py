"""One reader per process: everything after a cursor once and in order, whatever the live channel loses (T8.6)."""

from __future__ import annotations

import asyncio
import random

import pytest

from config.core.db import run_in_thread
from config.core.redis import get_redis
from copilot.realtime import event_log, redis_keys
from copilot.realtime.events import SessionChanged, decode_event
from copilot.realtime.fanout import CursorLost, EventFanout, FeedOverflowed
from tests.support.redis_outages import cut_connections
from tests.support.rest_clients import eventually


@pytest.fixture(autouse=True)
def _clean(redis_clean):
    return redis_clean


def publish(session, *titles):
    happened = [(SessionChanged(title=t, pinned=False, archived=False, state="idle"), None) for t in titles]
    return event_log.append_events(session, happened, user_id=1)


def titles(entries):
    return [decode_event(entry.payload).title for entry in entries]


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.losses = 0

    def deliver(self, session_id, entries) -> None:
        self.heard += titles(entries)

    def handle_cursor_lost(self, session_id) -> None:
        self.losses += 1


@pytest.fixture
async def tail():
    made = EventFanout()
    yield made
    if made._reader is not None:
        made._reader.cancel()
        await asyncio.gather(made._reader, return_exceptions=True)


async def test_listeners_hear_their_own_session_alone(tail):
    """T8.6"""
    one, two = Ear(), Ear()
    for name, ear in (("a", one), ("b", two)):
        await tail.subscribe(name, await run_in_thread(publish, name, "seen"), ear)
    await run_in_thread(publish, "a", "1", "2")
    await run_in_thread(publish, "b", "3")
    await eventually(lambda: (one.heard, two.heard) == (["1", "2"], ["3"]))


async def test_a_late_join_and_live_news_meet_without_gap_or_double(tail):
    """T8.2: joining while somebody publishes as fast as possible"""
    cursor = await run_in_thread(publish, "s", "start")
    expected = [str(number) for number in range(400)]

    def tell():
        for number in range(0, 400, 4):
            publish("s", *expected[number : number + 4])

    telling = asyncio.create_task(run_in_thread(tell))
    ears = []
    for _ in range(10):
        ear = Ear()
        await tail.subscribe("s", cursor, ear)
        ears.append(ear)
    await telling
    await eventually(lambda: all(ear.heard == expected for ear in ears))


async def test_lost_news_is_read_again_from_the_log(tail):
    """T8.6: the session's stream is the truth"""
    ear = Ear()
    await tail.subscribe("s", await run_in_thread(publish, "s", "seen"), ear)
    await run_in_thread(publish, "s", "1")
    await eventually(lambda: ear.heard == ["1"])
    chance = random.Random(3)
    expected = ["1"]
    for number in range(2, 40):
        if chance.random() < 0.4:
            await run_in_thread(lose_news, "s", str(number))
        else:
            await run_in_thread(publish, "s", str(number))
        expected.append(str(number))
    await run_in_thread(publish, "s", "last")
    await eventually(lambda: ear.heard == [*expected, "last"])


def lose_news(session, title):
    """In the log, counted, and never broadcast."""
    from copilot.realtime import events

    event = SessionChanged(title=title, pinned=False, archived=False, state="idle")
    get_redis().xadd(
        redis_keys.event_log_key(session),
        {"k": event.kind, "e": events.encode_event(event, session_id=session)},
    )
    get_redis().incr(redis_keys.LIVE_NUMBER_KEY)


async def test_a_broken_connection_is_made_again_and_nothing_is_missed(tail):
    """T8.6"""
    ear = Ear()
    await tail.subscribe("s", await run_in_thread(publish, "s", "seen"), ear)
    for number in range(5):
        await run_in_thread(cut_connections, listening=True)
        await run_in_thread(publish, "s", str(number))
        await eventually(lambda: ear.heard[-1:] == [str(number)])
    assert ear.heard == [str(number) for number in range(5)]


async def test_reading_again_survives_a_connection_that_breaks_meanwhile(tail):
    """T8.6: going on live would leave a gap that nobody sees"""
    ear = Ear()
    await tail.subscribe("s", await run_in_thread(publish, "s", "seen"), ear)
    await run_in_thread(publish, "s", "first")
    await eventually(lambda: ear.heard == ["first"])
    expected = ["first"]
    for number in range(30):
        await run_in_thread(lose_news, "s", str(number))
        await run_in_thread(cut_connections, listening=False)
        expected.append(str(number))
    await run_in_thread(publish, "s", "last")
    await eventually(lambda: ear.heard == [*expected, "last"])
    assert ear.losses == 0


async def test_a_cursor_that_is_lost_says_so(tail):
    """T8.2"""
    with pytest.raises(CursorLost):
        await tail.subscribe("s", "5-5", Ear())
    assert tail._sessions == {}


async def test_after_a_flush_every_listener_is_notified(tail):
    """T2.5"""
    ear = Ear()
    await tail.subscribe("s", await run_in_thread(publish, "s", "seen"), ear)
    await run_in_thread(publish, "s", "1")
    await eventually(lambda: ear.heard == ["1"])
    await run_in_thread(get_redis().flushdb)
    await run_in_thread(publish, "s", "2")
    await eventually(lambda: ear.losses == 1)
    assert tail._sessions == {}


async def test_a_feed_that_is_too_slow_overflows(tail):
    """T8.6: its bounded queue, and nobody else's"""
    async with tail.open_feed("s", await run_in_thread(publish, "s", "seen")) as feed:
        for _ in range(5):
            await run_in_thread(publish, "s", *(str(number) for number in range(500)))
        await eventually(lambda: feed._lost)
        with pytest.raises(FeedOverflowed):
            await anext(feed)
    assert tail._sessions == {}


async def test_idle_sessions_cost_the_reader_nothing(tail):
    """T8.6: news of others is passed over without being read"""
    ears = [Ear() for _ in range(50)]
    for number, ear in enumerate(ears):
        await tail.subscribe(f"s{number}", None, ear)
    await run_in_thread(publish, "elsewhere", "1")
    await run_in_thread(publish, "s7", "2")
    await eventually(lambda: ears[7].heard == ["2"])
    assert sum(len(ear.heard) for ear in ears) == 1
