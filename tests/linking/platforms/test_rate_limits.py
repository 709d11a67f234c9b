"""No platform is told more than it takes, and what must be said is not kept waiting by what need not be (L20)."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linking.platforms.base import OutboundAddress, OutgoingMessage, PlatformBusy, RenderedText
from linking.platforms.rate_limits import CallLimit, CallLimiter
from linking.platforms.telegram.adapter import TelegramAdapter
from tests.platform_fakes import telegram

GROUP = OutboundAddress(scope="server", container_id="-1001234567890")


class Clock:
    """Time that moves when everybody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waking = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, id(waking), waking))
        await waking

    async def drive(self, *lives: asyncio.Task[None]) -> None:
        """Every task either sleeps or waits for the platform, which answers at once: then the next one wakes."""
        while not all(life.done() for life in lives):
            before = len(self._sleepers)
            await asyncio.sleep(0.005)
            if self._sleepers and before == len(self._sleepers) == sum(not life.done() for life in lives):
                at, _, waking = heapq.heappop(self._sleepers)
                self.now = max(self.now, at)
                waking.set_result(None)
        await asyncio.gather(*lives)


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=60))
def test_no_stretch_of_time_holds_more_than_the_limit(steps):
    """L20: whatever comes when"""
    now = [0.0]
    room, limit = CallLimiter(clock=lambda: now[0]), CallLimit(calls=5, seconds=7.0, kept=2)
    taken: list[float] = []

    async def run() -> None:
        for pause, passing in steps:
            now[0] += pause
            if room.seconds_until([("x", limit)], passing=passing) == 0:
                async with room.acquire_slot([("x", limit)], passing=passing):
                    taken.append(now[0])
                inside = [at for at in taken if at > now[0] - 7.0]
                assert len(inside) <= (3 if passing else 5)

    asyncio.run(run())


async def test_what_may_be_left_out_is_refused_at_once_and_the_rest_waits_a_little():
    """L20: a progress step takes no place of a message"""
    clock = Clock()
    room, limit = CallLimiter(clock, clock.sleep), CallLimit(calls=2, seconds=2.0, kept=1)

    async def call(name: str = "x", limit: CallLimit = limit, *, passing: bool = False) -> None:
        async with room.acquire_slot([(name, limit)], passing=passing):
            pass

    await call(passing=True)
    with pytest.raises(PlatformBusy) as refused:
        await call(passing=True)
    assert refused.value.retry_after_seconds == 2.0
    await call()
    await clock.drive(asyncio.create_task(call()))
    assert clock.now == 2.0
    await call("y", CallLimit(calls=1, seconds=60.0))
    with pytest.raises(PlatformBusy):
        await call("y", CallLimit(calls=1, seconds=60.0))


async def test_however_long_each_call_is_under_way_no_stretch_at_the_platform_holds_more():
    """L20: some arrive at once and some late; after an outage all of them come together"""
    clock, chance = Clock(), random.Random(20)
    room, limit = CallLimiter(clock, clock.sleep), CallLimit(calls=3, seconds=3.0)
    arrived: list[float] = []

    async def call() -> None:
        while True:
            with suppress(PlatformBusy):
                async with room.acquire_slot([("x", limit)]):
                    await clock.sleep(chance.choice((0.01, 0.4, 2.5)))
                    arrived.append(clock.now)
                    await clock.sleep(chance.choice((0.01, 0.4)))
                    return
            await clock.sleep(0.5)

    await asyncio.wait_for(clock.drive(*(asyncio.create_task(call()) for _ in range(15))), 60)
    assert len(arrived) == 15
    assert all(later - first >= 3.0 for first, later in zip(arrived, arrived[3:], strict=False))


async def test_a_crowd_is_served_in_its_order_and_sleeps_until_its_turn():
    """L20, L27: who waits does not look at every place that comes free, and one chat's line is in no other's way"""
    clock, slept = Clock(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await clock.sleep(seconds)

    room, overall, in_a_chat = (
        CallLimiter(clock, sleep),
        CallLimit(calls=10, seconds=1.0),
        CallLimit(calls=1, seconds=3.0),
    )
    for _ in range(10):  # a place comes free every tenth of a second
        async with room.acquire_slot([("all", overall)]):
            clock.now += 0.1
    served: list[str] = []

    async def call(name: str) -> None:
        async with room.acquire_slot([("all", overall), (f"chat {name[0]}", in_a_chat)]):
            served.append(name)

    crowd = [f"{letter}1" for letter in "abcdefghijklmnopqrstuvwxyz"]
    names = ["a0", *crowd[1:], "a2"]
    await clock.drive(*(asyncio.create_task(call(name)) for name in names))
    assert served == names
    assert len(slept) < 3 * len(names)


async def test_a_window_of_a_minute_is_kept_while_shorter_ones_are_forgotten(monkeypatch):
    """L20: many people in chats of their own take no group's count away"""
    monkeypatch.setattr("linking.platforms.rate_limits.MAX_WINDOWS", 3)
    clock = Clock()
    room, minute = CallLimiter(clock, clock.sleep), CallLimit(calls=1, seconds=60.0)
    async with room.acquire_slot([("group", minute)]):
        clock.now += 1.0
    clock.now += 10.0
    for number in range(9):
        async with room.acquire_slot([(f"chat {number}", CallLimit(calls=3, seconds=3.0))]):
            clock.now += 1.0
    assert room.seconds_until([("group", minute)], passing=False) == 60.0 - 19.0


@pytest.fixture
def fake() -> Iterator[telegram.Telegram]:
    made = telegram.Telegram()
    made.counts_rates = True
    with made.running():
        yield made


async def test_three_answers_in_one_group_pass_no_limit_of_telegram_and_all_end(fake):
    """L20: each writes for a minute and would edit every half second; their last words come within seconds"""
    clock = Clock()
    fake.clock = clock
    adapter = TelegramAdapter(token=fake.token, secret="s", api_url=fake.url)
    adapter._limiter = CallLimiter(clock, clock.sleep)
    late: list[float] = []

    def words(text: str, *, passing: bool) -> OutgoingMessage:
        return OutgoingMessage(body=adapter.render_text(text), passing=passing)

    async def surely(message: OutgoingMessage, sent: str | None) -> str:
        while True:
            try:
                if sent is None:
                    return await adapter.send_message(GROUP, message)
                await adapter.edit_message(GROUP, sent, message)
                return sent
            except PlatformBusy as problem:
                await clock.sleep(problem.retry_after_seconds)

    async def answer(name: str) -> None:
        sent = await surely(words(name, passing=False), None)
        for step in range(60):
            await clock.sleep(1.0)
            try:
                await adapter.edit_message(GROUP, sent, words(f"{name} {step}", passing=True))
            except PlatformBusy:
                continue
        began = clock.now
        await surely(words(f"{name} is done.", passing=False), sent)
        late.append(clock.now - began)

    lives = [asyncio.create_task(answer(name)) for name in ("one", "two", "three")]
    await asyncio.wait_for(clock.drive(*lives), 60)
    await adapter.aclose()
    assert fake.refused == []
    assert sorted(one.text for one in fake.shown(GROUP.container_id)) == [
        "one is done.",
        "three is done.",
        "two is done.",
    ]
    assert max(late) <= 3.0


async def test_words_that_are_said_again_without_markup_are_counted_again(fake):
    """L20: Telegram counts what it refuses, too"""
    clock = Clock()
    fake.clock = clock
    adapter = TelegramAdapter(token=fake.token, secret="s", api_url=fake.url)
    adapter._limiter = CallLimiter(clock, clock.sleep)

    async def say_twice() -> None:
        for _ in range(2):
            await adapter.send_message(
                GROUP, OutgoingMessage(body=RenderedText(markup="<b>open", plain="open"))
            )

    await asyncio.wait_for(clock.drive(asyncio.create_task(say_twice())), 60)
    await adapter.aclose()
    assert fake.refused == ["HTML that cannot be parsed"] * 2
    assert clock.now == 3.0
