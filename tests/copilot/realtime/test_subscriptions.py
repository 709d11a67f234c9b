"""Following sessions over a socket: cursors, gaps, slow clients, and reloads at any moment (T8, E1)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from channels.testing import WebsocketCommunicator

from config.core.db import run_in_thread
from config.core.redis import get_redis
from copilot.chat import admission_outcomes
from copilot.models import Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.realtime import authentication, event_log, events, fanout, redis_keys
from copilot.realtime.events import SessionChanged, TextExtended
from copilot.routing import websocket_router
from tests.support import event_reducer, factories
from tests.support.rest_clients import eventually
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import assert_same_page, cue, fresh
from tests.support.websocket_client import Choked, Socket, connected, engine, publish

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada():
    return factories.ada()


@pytest.fixture
def session(ada):
    return factories.session(ada, title="Boats")


# --- following ---------------------------------------------------------------------------------------


async def test_a_cursor_gives_what_came_after_it_once_and_in_order(ada, session):
    """T8.2"""
    cursor = await run_in_thread(publish, session, "seen")
    await run_in_thread(publish, session, "1", "2")
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk), cursor=cursor)
        await run_in_thread(publish, session, "3")
        assert [(await socket.event())["title"] for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize("cursor", ["1-0", "99999999999999-0", "0-0"])
async def test_a_cursor_of_no_place_gets_a_fresh_snapshot(ada, session, cursor):
    """T8.2: too old, from the future, or of a log that was flushed"""
    await run_in_thread(publish, session, "now")
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk), cursor=cursor)
        snapshot = await socket.event()
        assert (snapshot["kind"], snapshot["reset"]) == ("session.snapshot", True)


@pytest.mark.parametrize("cursor", ["", "x", "1", "1-", "-1", "1-2-3", "٣-٣", "9" * 40 + "-0", "1 -0"])
async def test_nonsense_is_no_cursor(ada, session, cursor):
    """T8.2: 400 invalid_cursor"""
    async with connected(ada) as socket:
        answer = await socket.ask("session.subscribe", session_id=str(session.pk), cursor=cursor)
        assert (answer["kind"], answer["code"]) == ("error", "invalid_cursor")


async def test_a_client_far_behind_starts_over_and_then_gets_everything_once(ada, session):
    """T8.6: more than its queue holds becomes one snapshot; no event comes twice afterwards"""
    cursor = await run_in_thread(publish, session, "seen")
    for start in range(0, 5_000, 500):
        await run_in_thread(publish, session, *(f"old {number}" for number in range(start, start + 500)))
    line = Choked()
    async with connected(ada, application=line) as socket:
        line.open.clear()
        await socket.send(kind="session.subscribe", session_id=str(session.pk), cursor=cursor)
        await eventually(lambda: str(session.pk) in fanout.EVENT_FANOUT._sessions)
        await socket.send(kind="ping", ref="caught up")  # commands run in order
        await eventually(lambda: not socket.wire.input_queue.qsize())
        line.open.set()
        snapshot = await socket.event("session.snapshot")
        assert snapshot["reset"] is True
        await eventually(lambda: len(fanout.EVENT_FANOUT._sessions.get(str(session.pk), ())) == 1)
        await run_in_thread(publish, session, "new 1", "new 2", "last")
        titles = []
        while "last" not in titles:
            titles.append((await socket.event("session.changed"))["title"])
        assert [title for title in titles if not title.startswith("old")] == ["new 1", "new 2", "last"]
    await eventually(lambda: str(session.pk) not in fanout.EVENT_FANOUT._sessions)


async def test_a_socket_follows_many_sessions_up_to_a_limit(ada):
    """E2: several per socket"""
    sessions = [await run_in_thread(factories.session, ada) for _ in range(51)]
    async with connected(ada) as socket:
        for one in sessions[:50]:
            assert (await socket.ask("session.subscribe", session_id=str(one.pk)))["kind"] == "ack"
        refused = await socket.ask("session.subscribe", session_id=str(sessions[50].pk))
        assert refused["code"] == "too_many_subscriptions"
        assert (await socket.ask("session.subscribe", session_id=str(sessions[0].pk)))["kind"] == "ack"
        await run_in_thread(publish, sessions[49], "ring")
        assert (await socket.event("session.changed"))["session_id"] == str(sessions[49].pk)
        await socket.ask("session.unsubscribe", session_id=str(sessions[49].pk))
        await run_in_thread(publish, sessions[49], "unheard")
        await run_in_thread(publish, sessions[48], "heard")
        assert (await socket.event("session.changed"))["title"] == "heard"
    await eventually(lambda: not fanout.EVENT_FANOUT._sessions)


async def test_the_sidebar_gets_all_sessions_of_its_owner_and_no_others(ada, session):
    """E1"""
    foreign = await run_in_thread(factories.session, await run_in_thread(factories.bob))
    async with connected(ada) as socket:
        assert (await socket.ask("sidebar.subscribe"))["kind"] == "ack"
        await eventually(lambda: fanout.EVENT_FANOUT._connected.is_set())
        await run_in_thread(publish, foreign, "not yours")
        await run_in_thread(publish, session, "yours")
        assert (await socket.event())["title"] == "yours"


def wait_for_another_millisecond(cursor: str) -> None:
    """Cursors begin with Redis's clock: an emptied log would give the next event the very cursor of the last one."""
    while True:
        seconds, microseconds = get_redis().time()
        if seconds * 1000 + microseconds // 1000 > int(cursor.partition("-")[0]):
            return


async def test_after_a_flush_clients_get_a_snapshot(ada, session):
    """T2.5, T8.2: without asking"""
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk))
        assert (await socket.event())["reset"] is False
        await run_in_thread(publish, session, "before")
        before = await socket.event("session.changed")
        await run_in_thread(get_redis().flushdb)
        await run_in_thread(wait_for_another_millisecond, before["cursor"])
        await run_in_thread(publish, session, "after")
        snapshot = await socket.event("session.snapshot")
        assert snapshot["reset"] is True


async def test_a_gap_in_the_news_is_read_again_from_the_log(ada, session):
    """T8.6: the live channel is only news"""
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk))
        await socket.event("session.snapshot")
        await run_in_thread(publish, session, "1")
        assert (await socket.event("session.changed"))["title"] == "1"
        payload = events.encode_event(
            SessionChanged(title="2", pinned=False, archived=False, state="idle"), session_id=str(session.pk)
        )
        await run_in_thread(
            get_redis().xadd,
            redis_keys.event_log_key(str(session.pk)),
            {"k": "session.changed", "e": payload},
        )
        await run_in_thread(get_redis().incr, redis_keys.LIVE_NUMBER_KEY)
        await run_in_thread(publish, session, "3")
        assert [(await socket.event("session.changed"))["title"] for _ in range(2)] == ["2", "3"]


async def test_a_slow_client_does_not_slow_others(ada, session):
    """T8.6: its bounded queue overflows into a snapshot, while others follow live"""
    name, line = str(session.pk), Choked()
    async with connected(ada, application=line) as slow, connected(ada) as quick:
        for socket in (slow, quick):
            await socket.ask("session.subscribe", session_id=name)
            await socket.event("session.snapshot")
        line.open.clear()
        deltas = [
            (TextExtended(block_id="b", row_id="r", offset=number, delta="x"), None) for number in range(500)
        ]
        for _ in range(6):
            await run_in_thread(event_log.append_events, name, deltas)
            for _ in range(500):
                await quick.event("text.extended")
        await run_in_thread(publish, session, "end")
        assert (await quick.event("session.changed"))["title"] == "end"
        line.open.set()
        assert (await slow.event("session.snapshot"))["reset"] is True


# --- two roads to one page ---------------------------------------------------------------------------


async def test_reloading_at_any_moment_ends_in_the_same_page(ada, session):
    """T12, T8.3: twenty clients that came at twenty moments, and one that never reloaded"""
    name = str(session.pk)
    async with engine() as rig:
        rig.model.otherwise = replies()
        await run_in_thread(rig.start_worker)
        async with connected(ada) as watcher:
            await watcher.ask("session.subscribe", session_id=name)
            pages = [Page(watcher)]
            await watcher.ask("message.send", session_id=name, text="Tell me a story")
            for number in range(20):
                rig.model.give(number)
                socket = await joined(ada, name)
                pages.append(Page(socket))
                if number == 7:
                    await watcher.ask("message.send", session_id=name, text="Go on")
            rig.model.give(20)
            for page in pages:
                await page.read_to("turn.succeeded")
            reloaded = await run_in_thread(fresh, session)
            for page in pages:
                assert_same_page(page.transcript(), reloaded)
            for page in pages[1:]:
                await page.socket.wire.disconnect(timeout=PATIENCE_SECONDS)


def replies():
    """One long reply whose pieces wait for the test, then a tool, then the end."""
    pieces = []
    for number in range(20):
        pieces += [cue(number), ScriptedText(f"piece {number} ", size=3)]
    made = iter([[*pieces, ScriptedCall("current_time")], [cue(20), ScriptedText("The end.")]])
    return lambda request: next(made, [ScriptedText("Aye.")])


async def joined(user, name):
    ticket = await run_in_thread(authentication.issue_ticket, user.pk)
    wire = WebsocketCommunicator(
        websocket_router, f"/ws/?ticket={ticket}", headers=[(b"host", b"testserver")]
    )
    await wire.connect(timeout=PATIENCE_SECONDS)
    socket = Socket(wire)
    await socket.ask("session.subscribe", session_id=name)
    return socket


class Page:
    """What one client has on its screen."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.seen: list[dict] = []

    async def read_to(self, kind: str) -> None:
        while not self.seen or self.seen[-1]["kind"] != kind:
            self.seen.append(await self.socket.event())
        self.seen.append(await self.socket.event("session.changed"))

    def transcript(self) -> event_reducer.ReducedTranscript:
        known = [frame for frame in self.seen if frame["kind"] in events.EVENT_CLASSES]
        told = [
            (events.decode_event(msgspec.json.encode(frame).decode()), frame.get("turn_id"))
            for frame in known
        ]
        return event_reducer.reduce_events(event_reducer.ReducedTranscript(), told)


async def test_joining_late_costs_about_as_much_as_joining_early(ada, session):
    """T8.3: the snapshot is one frame, however many deltas went before"""
    name = str(session.pk)
    turn = await run_in_thread(factories.turn, session, Turn.Status.RUNNING)
    row = await run_in_thread(
        lambda: factories.message(session, "assistant", turn=turn, content="x" * 100, streaming=True)
    )
    for start in range(0, 5_000, 500):
        deltas = [
            (TextExtended(block_id="b", row_id=str(row.pk), offset=number, delta="x"), str(turn.pk))
            for number in range(start, start + 500)
        ]
        await run_in_thread(event_log.append_events, name, deltas)
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=name)
        snapshot = await socket.event()
        assert snapshot["turn"]["messages"][0]["content"] == "x" * 5_000
        await asyncio.sleep(0)
        assert await socket.wire.receive_nothing(timeout=0.05)


def test_the_answers_names_stay_what_clients_rely_on():
    """E3: the fields of an ack to message.send"""
    fields = {"message_id", "turn_id", "run_id", "state", "cursor", "ignored_attachments", "hint"}
    assert set(admission_outcomes.SubmissionStarted.__dataclass_fields__) == fields
    assert set(admission_outcomes.SubmissionQueued.__dataclass_fields__) == fields | {"position", "capacity"}
