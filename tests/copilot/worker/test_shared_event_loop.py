"""Many turns on one loop: it is never held up, it is never taken for hung, and an outage costs no row (A1, A3)."""

from __future__ import annotations

import asyncio
import threading
import time

from copilot.models import Message
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.tools.base import ToolOutput
from tests.support import factories
from tests.support.redis_outages import redis_away
from tests.support.turn_engine import (
    Errand,
    add_tools,
    answer,
    assert_same_page,
    cue,
    ended,
    folded,
    fresh,
    kinds,
    queue,
    said,
    start,
    told,
    until,
)

HELD_UP_SECONDS = 0.25


def running(errand: Errand, run) -> Errand:
    object.__setattr__(errand.tool, "run", run)
    return errand


def test_all_turns_of_a_process_share_one_loop_on_a_thread_of_its_own(rig, model, monkeypatch):
    """A1.2: long after the thread that submitted them is gone"""
    seen = []
    errand = Errand("look", waits=True)

    async def look(arguments, invocation):
        seen.append((threading.current_thread(), asyncio.get_running_loop()))
        return await errand._run(arguments, invocation)

    add_tools(monkeypatch, running(errand, look))
    model.otherwise = lambda request: (
        [ScriptedText("Ok.")] if len(request.messages) > 1 else [ScriptedCall("look")]
    )
    begun = [start(factories.session()) for _ in range(3)]
    until(lambda: errand.runs == 3)
    errand.cue.give()
    assert {ended(turn_id).status for turn_id in begun} == {"succeeded"}
    [(thread, loop)] = set(seen)
    assert thread is not threading.current_thread()
    assert loop is rig.worker._loop


class Ticker:
    """How much of its thread's time a loop ever spent without coming round; other processes do not count."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest = 0.0
        self._task = asyncio.run_coroutine_threadsafe(self._tick(), loop)

    async def _tick(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest, before = max(self.longest, now - before), now

    def stop(self) -> None:
        self._task.cancel()


def test_nothing_a_turn_does_holds_the_loop_up(rig, model, monkeypatch):
    """A1.1: a long question, replies in thousands of pieces and in one, a megabyte from a tool, four times at once"""
    errand = Errand("fetch")

    async def fetch(arguments, invocation):
        return ToolOutput(value="All is well. <system_note> sk-none " * 30_000)

    add_tools(monkeypatch, running(errand, fetch))
    ended(start(factories.session()))  # what is loaded once is loaded
    model.otherwise = lambda request: (
        [ScriptedText("word " * 1_000, size=5), ScriptedText("<td>1</td> " * 8_000)]
        if len(request.messages) > 1
        else [ScriptedCall("fetch")]
    )
    ticker = Ticker(rig.worker._loop)
    begun = [start(factories.session(), "x" * 64_000) for _ in range(4)]
    assert {ended(turn_id).status for turn_id in begun} == {"succeeded"}
    ticker.stop()
    assert ticker.longest < HELD_UP_SECONDS


def test_a_tool_that_is_busy_for_minutes_is_no_hang(rig, model, monkeypatch, settings):
    """A3.c3: a beat after each silence, and the watchdog stays quiet; the seconds are scaled, their order is not"""
    settings.HEARTBEAT_SECONDS, settings.STREAM_IDLE_SECONDS = 0.1, 40.0
    session, errand = factories.session(), Errand("fetch", waits=True)
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("fetch"))
    turn_id = start(session)
    until(lambda: [beat.phase for beat in told(session.pk, "turn.heartbeat")].count("tool") >= 3)
    errand.cue.give()
    assert ended(turn_id).status == "succeeded"


def test_redis_away_in_the_middle_of_a_turn_costs_no_row(rig, model):
    """A3.c3, A3.8: the answer's row is whole while nobody can be told; those who watch are told when it is back"""
    session = factories.session()
    before = fresh(session)
    model.will(ScriptedText("Half, "), cue(1), ScriptedText("and the rest."))
    turn_id = start(session)
    model.reaches(1)
    with redis_away():
        model.give(1)
        until(lambda: answer(turn_id) == "Half, and the rest.")
    assert ended(turn_id).status == "succeeded"
    assert_same_page(folded(before, session), fresh(session))


def test_a_turn_takes_what_waits_then_asks_and_lets_go_last(rig, model):
    """A3.1: its own row was there before it, and is not made again"""
    session = factories.session()
    rig.hold_tasks()
    turn_id = start(session, "One")
    assert said(session) == ["One"]
    queue(session, "Two")
    rig.worker.take(turn_id)
    assert ended(turn_id).status == "succeeded"
    assert kinds(session) == ["user", "user", "assistant"]
    assert [
        message.text
        for message in model.requests[0].messages
        if "One" in message.text and "Two" in message.text
    ]
    assert len(model.requests) == 1
    assert not Message.objects.filter(session=session, sequence=None).exists()
