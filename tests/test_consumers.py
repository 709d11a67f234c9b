"""The socket's door: commands, limits, strangers, and following many sessions (E1, E2, T8, T11)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from channels.testing import WebsocketCommunicator

from copilot import api_keys, dispatch, events, folding
from copilot.bridge import in_thread
from copilot.events import SessionChanged, TextExtended
from copilot.live import keys, stream, tail, tickets
from copilot.live.client import blocking
from copilot.models import Question, Turn
from copilot.providers.scripted import Call, Hang, Text
from copilot.routing import sockets
from tests import make
from tests.engine import Rig, assert_same_page, cue, fresh
from tests.rest import NOBODYS, eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada():
    return make.ada()


@pytest.fixture
def session(ada):
    return make.session(ada, title="Boats")


class Socket:
    """A client's end of the wire."""

    def __init__(self, wire: WebsocketCommunicator) -> None:
        self.wire = wire
        self.aside: list[dict] = []

    async def send(self, **command) -> None:
        await self.wire.send_to(text_data=msgspec.json.encode(command).decode())

    async def next(self) -> dict:
        return msgspec.json.decode(await self.wire.receive_from(timeout=10))

    async def ask(self, kind: str, **fields) -> dict:
        """Send a command and wait for its answer; events that come first are kept aside."""
        await self.send(kind=kind, ref="r", **fields)
        while True:
            frame = await self.next()
            if frame["kind"] in ("ack", "error"):
                assert frame["ref"] == "r"
                return frame
            self.aside.append(frame)

    async def event(self, *kinds: str) -> dict:
        """The next event, of one of these kinds if any are named."""
        while True:
            frame = self.aside.pop(0) if self.aside else await self.next()
            if not kinds or frame["kind"] in kinds:
                return frame


@asynccontextmanager
async def connected(user, *, headers=(), query="", application=sockets):
    """A socket with a ticket, unless it brings something else."""
    if not headers and not query:
        query = f"?ticket={await in_thread(tickets.issue, user.pk)}"
    wire = WebsocketCommunicator(application, f"/ws/{query}", headers=[(b"host", b"testserver"), *headers])
    accepted, _ = await wire.connect(timeout=10)
    assert accepted
    try:
        yield Socket(wire)
    finally:
        await wire.disconnect(timeout=10)


async def closes(wire: WebsocketCommunicator) -> int:
    """The code with which the server hangs up."""
    while True:
        message = await wire.receive_output(timeout=10)
        if message["type"] == "websocket.close":
            return message["code"]


@asynccontextmanager
async def engine():
    """A rig made and torn down off this loop."""
    rig = await in_thread(Rig)
    try:
        yield rig
    finally:
        await in_thread(rig.close)


def publish(session, *titles):
    happened = [
        (SessionChanged(title=title, pinned=False, archived=False, state="idle"), None) for title in titles
    ]
    return stream.publish_now(str(session.pk), happened, user_id=session.owner_id)


# --- who knocks (E2) ---------------------------------------------------------------------------------


async def test_strangers_are_closed_with_a_reason(ada):
    """E2: no credentials, a spent ticket, a bad key, a cookie from another site"""
    ticket = await in_thread(tickets.issue, ada.pk)
    assert await in_thread(tickets.redeem, ticket) == ada.pk
    knocks = [
        ("", []),
        (f"?ticket={ticket}", []),
        ("", [(b"authorization", b"Bearer nonsense")]),
        ("", [(b"cookie", b"sessionid=nonsense"), (b"origin", b"https://evil.example")]),
    ]
    for query, headers in knocks:
        wire = WebsocketCommunicator(sockets, f"/ws/{query}", headers=[(b"host", b"testserver"), *headers])
        await wire.connect(timeout=10)
        assert await closes(wire) == 4401


async def test_a_key_opens_a_socket_within_its_scopes(ada, session):
    """E2, A20.6"""
    made = await in_thread(api_keys.create, ada, scopes=("read",))
    async with connected(ada, headers=[(b"authorization", f"Bearer {made.token}".encode())]) as socket:
        assert (await socket.ask("session.subscribe", session_id=str(session.pk)))["kind"] == "ack"
        refused = await socket.ask("message.send", session_id=str(session.pk), text="Hello")
        assert (refused["kind"], refused["code"]) == ("error", "insufficient_scope")


# --- commands ----------------------------------------------------------------------------------------


async def test_ping_is_acknowledged_with_its_ref(ada):
    """E2"""
    async with connected(ada) as socket:
        await socket.send(kind="ping", ref=7)
        assert await socket.next() == {"kind": "ack", "ref": 7}


BAD = [
    "not json",
    "[]",
    "null",
    '"text"',
    "{}",
    '{"kind": "nothing.known"}',
    '{"kind": "ping", "extra": 1}',
    '{"kind": "ping", "ref": {"deep": []}}',
    '{"kind": "message.send"}',
    '{"kind": "message.send", "session_id": 5, "text": "x"}',
    '{"kind": "session.subscribe", "session_id": "x", "cursor": 5}',
    '{"kind": "queue.move", "session_id": "x", "message_id": "y", "position": 0}',
    '{"kind": "turn.stop", "session_id": "x", "queue": "burn"}',
    "[" * 10_000,
    '{"kind": "message.send", "session_id": "x", "text": "\\ud800"}',
]


async def test_bad_frames_are_answered_and_the_socket_stays_open(ada):
    """E2: unknown or malformed, never a crash"""
    async with connected(ada) as socket:
        for frame in BAD:
            await socket.wire.send_to(text_data=frame)
            answer = await socket.next()
            assert (answer["kind"], answer["code"]) in [
                ("error", "invalid_request"),
                ("error", "not_found"),
            ], frame
        await socket.wire.send_input({"type": "websocket.receive", "text": ""})
        assert (await socket.next())["code"] == "invalid_request"
        await socket.wire.send_to(bytes_data=b"\xff\xfe")
        assert (await socket.next())["code"] == "invalid_request"
        assert (await socket.ask("ping"))["kind"] == "ack"


async def test_foreign_missing_and_malformed_sessions_look_the_same(ada, session):
    """E2, T3.8"""
    foreign = await in_thread(make.session, await in_thread(make.bob))
    commands = [
        ("session.subscribe", {}),
        ("message.send", {"text": "Hello"}),
        ("turn.stop", {}),
        ("queue.edit", {"message_id": NOBODYS, "text": "x"}),
        ("queue.remove", {"message_id": NOBODYS}),
        ("queue.move", {"message_id": NOBODYS, "position": 1}),
        ("queue.send_now", {"message_id": NOBODYS}),
    ]
    async with connected(ada) as socket:
        for kind, fields in commands:
            answers = []
            for name in (str(foreign.pk), NOBODYS, "nonsense", str(session.pk).upper()):
                answers.append(await socket.ask(kind, session_id=name, **fields))
            assert all(answer == answers[0] for answer in answers), kind
            assert (answers[0]["kind"], answers[0]["code"]) == ("error", "not_found"), kind


async def test_a_frame_that_is_too_large_closes_the_socket(ada):
    """T11: error event, then 1009"""
    async with connected(ada) as socket:
        await socket.wire.send_to(text_data="x" * (256 * 1024 + 1))
        assert (await socket.next())["code"] == "frame_too_large"
        assert await closes(socket.wire) == 1009


async def test_too_many_commands_close_the_socket(ada):
    """T11: 60 in 10 s, then 4008"""
    async with connected(ada) as socket:
        for _ in range(60):
            assert (await socket.ask("ping"))["kind"] == "ack"
        await socket.send(kind="ping")
        assert (await socket.next())["code"] == "too_many_requests"
        assert await closes(socket.wire) == 4008


async def test_a_conversation_over_one_socket(ada, session):
    """E1, E2: subscribe, send, queue, edit, move, remove, stop, all in one place"""
    name = str(session.pk)
    async with engine() as rig:
        rig.model.will(Text("Talking"), Hang())
        await in_thread(rig.start_worker)
        async with connected(ada) as socket:
            assert (await socket.ask("session.subscribe", session_id=name))["kind"] == "ack"
            assert (await socket.event())["kind"] == "session.snapshot"
            started = await socket.ask("message.send", session_id=name, text="Hello", run_id="first")
            assert (started["state"], started["run_id"]) == ("started", "first")
            await socket.event("text.started")
            queued = [
                await socket.ask("message.send", session_id=name, text=text) for text in ("A", "B", "C")
            ]
            assert [(one["state"], one["position"], one["capacity"]) for one in queued] == [
                ("queued", place, 10) for place in (1, 2, 3)
            ]
            a, b, c = (one["message_id"] for one in queued)
            assert (await socket.ask("queue.edit", session_id=name, message_id=a, text="A!"))["kind"] == "ack"
            assert (await socket.ask("queue.move", session_id=name, message_id=c, position=1))[
                "kind"
            ] == "ack"
            assert (await socket.ask("queue.remove", session_id=name, message_id=b))["kind"] == "ack"
            while [item["text"] for item in (await socket.event("queue.changed"))["items"]] != ["C", "A!"]:
                pass
            stopped = await socket.ask("turn.stop", session_id=name)
            assert (stopped["state"], stopped["turn_id"]) == ("stopping", started["turn_id"])
            assert (await socket.event("turn.cancelled"))["run_ids"] == ["first"]
            gone = await socket.ask("queue.remove", session_id=name, message_id=b)
            assert gone["code"] == "not_queued"
            now = await socket.ask("queue.send_now", session_id=name, message_id=a)
            assert now["kind"] == "ack"
            await socket.event("turn.succeeded")


async def test_a_question_is_answered_over_the_socket(ada, session):
    """A12.2, A12.4: the first answer counts"""
    name = str(session.pk)
    async with engine() as rig:
        rig.model.will(Call("ask_user", {"question": "Where to?"}))
        rig.model.will(Text("South it is."))
        await in_thread(rig.start_worker)
        async with connected(ada) as socket:
            await socket.ask("session.subscribe", session_id=name)
            await socket.ask("message.send", session_id=name, text="Sail")
            asked = await socket.event("question.asked")
            question = asked["question"]["id"]
            assert (await socket.ask("question.answer", question_id=question, text="South"))["kind"] == "ack"
            late = await socket.ask("question.answer", question_id=question, text="North")
            assert late["code"] == "question_closed"
            await socket.event("turn.succeeded")
            missing = await socket.ask("question.answer", question_id="nonsense", text="x")
            assert missing["code"] == "not_found"
        assert (await in_thread(Question.objects.get)).answer == "South"


# --- following ---------------------------------------------------------------------------------------


async def test_a_cursor_gives_what_came_after_it_once_and_in_order(ada, session):
    """T8.2"""
    cursor = await in_thread(publish, session, "seen")
    await in_thread(publish, session, "1", "2")
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk), cursor=cursor)
        await in_thread(publish, session, "3")
        assert [(await socket.event())["title"] for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize("cursor", ["1-0", "99999999999999-0", "0-0"])
async def test_a_cursor_of_no_place_gets_a_fresh_snapshot(ada, session, cursor):
    """T8.2: too old, from the future, or of a log that was flushed"""
    await in_thread(publish, session, "now")
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


class Choked:
    """The socket's application behind a line that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope, receive, send):
        async def gated(message):
            await self.open.wait()
            await send(message)

        await sockets(scope, receive, gated)


async def test_a_client_far_behind_starts_over_and_then_gets_everything_once(ada, session):
    """T8.6: more than its queue holds becomes one snapshot; no event comes twice afterwards"""
    cursor = await in_thread(publish, session, "seen")
    for start in range(0, 5_000, 500):
        await in_thread(publish, session, *(f"old {number}" for number in range(start, start + 500)))
    line = Choked()
    async with connected(ada, application=line) as socket:
        line.open.clear()
        await socket.send(kind="session.subscribe", session_id=str(session.pk), cursor=cursor)
        await eventually(lambda: str(session.pk) in tail.TAIL._sessions)
        await socket.send(kind="ping", ref="caught up")  # commands run in order
        await eventually(lambda: not socket.wire.input_queue.qsize())
        line.open.set()
        snapshot = await socket.event("session.snapshot")
        assert snapshot["reset"] is True
        await eventually(lambda: len(tail.TAIL._sessions.get(str(session.pk), ())) == 1)
        await in_thread(publish, session, "new 1", "new 2", "last")
        titles = []
        while "last" not in titles:
            titles.append((await socket.event("session.changed"))["title"])
        assert [title for title in titles if not title.startswith("old")] == ["new 1", "new 2", "last"]
    await eventually(lambda: str(session.pk) not in tail.TAIL._sessions)


async def test_a_socket_follows_many_sessions_up_to_a_limit(ada):
    """E2: several per socket"""
    sessions = [await in_thread(make.session, ada) for _ in range(51)]
    async with connected(ada) as socket:
        for one in sessions[:50]:
            assert (await socket.ask("session.subscribe", session_id=str(one.pk)))["kind"] == "ack"
        refused = await socket.ask("session.subscribe", session_id=str(sessions[50].pk))
        assert refused["code"] == "too_many_subscriptions"
        assert (await socket.ask("session.subscribe", session_id=str(sessions[0].pk)))["kind"] == "ack"
        await in_thread(publish, sessions[49], "ring")
        assert (await socket.event("session.changed"))["session_id"] == str(sessions[49].pk)
        await socket.ask("session.unsubscribe", session_id=str(sessions[49].pk))
        await in_thread(publish, sessions[49], "unheard")
        await in_thread(publish, sessions[48], "heard")
        assert (await socket.event("session.changed"))["title"] == "heard"
    await eventually(lambda: not tail.TAIL._sessions)


async def test_the_sidebar_hears_of_all_sessions_and_of_nobody_elses(ada, session):
    """E1"""
    foreign = await in_thread(make.session, await in_thread(make.bob))
    async with connected(ada) as socket:
        assert (await socket.ask("sidebar.subscribe"))["kind"] == "ack"
        await eventually(lambda: tail.TAIL._connected.is_set())
        await in_thread(publish, foreign, "not yours")
        await in_thread(publish, session, "yours")
        assert (await socket.event())["title"] == "yours"


async def test_after_a_flush_clients_get_a_snapshot(ada, session):
    """T2.5, T8.2: without asking"""
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk))
        assert (await socket.event())["reset"] is False
        await in_thread(publish, session, "before")
        await socket.event("session.changed")
        await in_thread(blocking().flushdb)
        await in_thread(publish, session, "after")
        snapshot = await socket.event("session.snapshot")
        assert snapshot["reset"] is True


async def test_a_gap_in_the_news_is_read_again_from_the_log(ada, session):
    """T8.6: the live channel is only news"""
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=str(session.pk))
        await socket.event("session.snapshot")
        await in_thread(publish, session, "1")
        assert (await socket.event("session.changed"))["title"] == "1"
        payload = events.encode(
            SessionChanged(title="2", pinned=False, archived=False, state="idle"), session_id=str(session.pk)
        )
        await in_thread(blocking().xadd, keys.log(str(session.pk)), {"k": "session.changed", "e": payload})
        await in_thread(blocking().incr, keys.LIVE_NUMBER)
        await in_thread(publish, session, "3")
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
            await in_thread(stream.publish_now, name, deltas)
            for _ in range(500):
                await quick.event("text.extended")
        await in_thread(publish, session, "end")
        assert (await quick.event("session.changed"))["title"] == "end"
        line.open.set()
        assert (await slow.event("session.snapshot"))["reset"] is True


# --- two roads to one page ---------------------------------------------------------------------------


async def test_reloading_at_any_moment_ends_in_the_same_page(ada, session):
    """T12, T8.3: twenty clients that came at twenty moments, and one that never reloaded"""
    name = str(session.pk)
    async with engine() as rig:
        rig.model.otherwise = replies()
        await in_thread(rig.start_worker)
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
            reloaded = await in_thread(fresh, session)
            for page in pages:
                assert_same_page(page.transcript(), reloaded)
            for page in pages[1:]:
                await page.socket.wire.disconnect(timeout=10)


def replies():
    """One long reply whose pieces wait for the test, then a tool, then the end."""
    pieces = []
    for number in range(20):
        pieces += [cue(number), Text(f"piece {number} ", size=3)]
    made = iter([[*pieces, Call("current_time")], [cue(20), Text("The end.")]])
    return lambda request: next(made, [Text("Aye.")])


async def joined(user, name):
    ticket = await in_thread(tickets.issue, user.pk)
    wire = WebsocketCommunicator(sockets, f"/ws/?ticket={ticket}", headers=[(b"host", b"testserver")])
    await wire.connect(timeout=10)
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

    def transcript(self) -> folding.Transcript:
        known = [frame for frame in self.seen if frame["kind"] in events.CLASSES]
        told = [(events.decode(msgspec.json.encode(frame).decode()), frame.get("turn_id")) for frame in known]
        return folding.fold_all(folding.Transcript(), told)


async def test_joining_late_costs_about_as_much_as_joining_early(ada, session):
    """T8.3: the snapshot is one frame, however many deltas went before"""
    name = str(session.pk)
    turn = await in_thread(make.turn, session, Turn.Status.RUNNING)
    row = await in_thread(
        lambda: make.message(session, "assistant", turn=turn, content="x" * 100, streaming=True)
    )
    for start in range(0, 5_000, 500):
        deltas = [
            (TextExtended(block_id="b", row_id=str(row.pk), offset=number, delta="x"), str(turn.pk))
            for number in range(start, start + 500)
        ]
        await in_thread(stream.publish_now, name, deltas)
    async with connected(ada) as socket:
        await socket.ask("session.subscribe", session_id=name)
        snapshot = await socket.event()
        assert snapshot["turn"]["messages"][0]["content"] == "x" * 5_000
        await asyncio.sleep(0)
        assert await socket.wire.receive_nothing(timeout=0.05)


def test_the_answers_names_stay_what_clients_rely_on():
    """E3: the fields of an ack to message.send"""
    fields = {"message_id", "turn_id", "run_id", "cursor", "ignored_attachments"}
    assert set(dispatch.Started.__dataclass_fields__) == fields
    assert set(dispatch.Queued.__dataclass_fields__) == fields | {"position", "capacity"}
