"""The WebSocket endpoint: commands, limits, authentication, and following many sessions (E1, E2, T8, T11)."""

from __future__ import annotations

import pytest
from channels.testing import WebsocketCommunicator

from config.core import rate_limits
from config.core.db import run_in_thread
from copilot.accounts import api_keys
from copilot.models import Question
from copilot.providers.scripted import ScriptedCall, ScriptedHang, ScriptedText
from copilot.realtime import authentication, connections
from copilot.routing import websocket_router
from tests.support import factories
from tests.support.rest_clients import NOBODYS
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.websocket_client import closes, connected, engine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada():
    return factories.ada()


@pytest.fixture
def session(ada):
    return factories.session(ada, title="Boats")


# --- authentication (E2) -----------------------------------------------------------------------------


async def test_handshakes_without_credentials_are_closed_with_a_reason(ada):
    """E2: no credentials, a spent ticket, a bad key, a cookie from another site"""
    ticket = await run_in_thread(authentication.issue_ticket, ada.pk)
    assert await run_in_thread(authentication.redeem_ticket, ticket) == authentication.RedeemedTicket(
        ada.pk, None
    )
    knocks = [
        ("", []),
        (f"?ticket={ticket}", []),
        ("", [(b"authorization", b"Bearer nonsense")]),
        ("", [(b"cookie", b"sessionid=nonsense"), (b"origin", b"https://evil.example")]),
    ]
    for query, headers in knocks:
        wire = WebsocketCommunicator(
            websocket_router, f"/ws/{query}", headers=[(b"host", b"testserver"), *headers]
        )
        await wire.connect(timeout=PATIENCE_SECONDS)
        assert await closes(wire) == 4401


@pytest.fixture
def few_handshakes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "FAILED_HANDSHAKES_PER_MINUTE", 3)
    connections.HANDSHAKES.unblock_all()
    yield
    connections.HANDSHAKES.unblock_all()


def handshake(query: str, address: str) -> WebsocketCommunicator:
    wire = WebsocketCommunicator(websocket_router, f"/ws/{query}", headers=[(b"host", b"testserver")])
    wire.scope["client"] = (address, 1)
    return wire


async def opens(query: str, address: str) -> bool:
    wire = handshake(query, address)
    accepted, _ = await wire.connect(timeout=PATIENCE_SECONDS)
    if accepted:
        await wire.disconnect(timeout=PATIENCE_SECONDS)
    return accepted


@pytest.mark.attack
async def test_an_address_that_fails_to_authenticate_too_often_is_turned_away_unheard(
    ada, few_handshakes, monkeypatch: pytest.MonkeyPatch
):
    """E2: nothing is looked up for it any more, and other addresses come in as before"""
    identified = list[object]()
    identify = authentication.authenticate_handshake

    def note_identify(knock):
        identified.append(knock)
        return identify(knock)

    monkeypatch.setattr(authentication, "authenticate_handshake", note_identify)
    guesses = [await opens("?ticket=guess", "9.9.9.9") for _ in range(6)]
    assert guesses == [True] * 4 + [False] * 2  # accepted to be told why, then not even that
    assert len(identified) == 4
    for address, is_welcome in (("9.9.9.9", False), ("9.9.9.8", True), ("10.0.0.1", True)):
        ticket = await run_in_thread(authentication.issue_ticket, ada.pk)
        assert await opens(f"?ticket={ticket}", address) is is_welcome


async def test_only_a_failed_handshake_pays_for_the_count(
    ada, few_handshakes, monkeypatch: pytest.MonkeyPatch
):
    """E2: and those from private addresses are not counted, because everybody behind a proxy has the same"""
    counted = list[str]()
    monkeypatch.setattr(rate_limits, "count_request", lambda name, who, **limits: counted.append(who))
    ticket = await run_in_thread(authentication.issue_ticket, ada.pk)
    assert await opens(f"?ticket={ticket}", "9.9.9.9")
    assert await opens("?ticket=guess", "10.0.0.1")
    assert counted == []
    assert await opens("?ticket=guess", "2606:4700::1")
    assert counted == ["2606:4700::/64"]


@pytest.mark.attack
def test_blocked_addresses_fill_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_BLOCKED_NETWORKS", 5)
    monkeypatch.setattr(rate_limits, "count_request", lambda name, who, **limits: 60)
    limit = connections.HandshakeLimit()
    for number in range(20):
        limit.count_failure(f"9.9.9.{number}")
    assert [limit.is_blocked(f"9.9.9.{number}") for number in range(20)] == [False] * 15 + [True] * 5


async def test_a_key_opens_a_socket_within_its_scopes(ada, session):
    """E2, A20.6"""
    made = await run_in_thread(api_keys.create_api_key, ada, scopes=("read",))
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
    foreign = await run_in_thread(factories.session, await run_in_thread(factories.bob))
    commands = [
        ("session.subscribe", {}),
        ("message.send", {"text": "Hello"}),
        ("turn.stop", {}),
        ("queue.edit", {"message_id": NOBODYS, "text": "x"}),
        ("queue.remove", {"message_id": NOBODYS}),
        ("queue.move", {"message_id": NOBODYS, "position": 1}),
        ("queue.send_now", {"message_id": NOBODYS}),
        ("branch.edit", {"message_id": NOBODYS, "text": "x"}),
        ("branch.retry", {"message_id": NOBODYS}),
        ("branch.switch", {"message_id": NOBODYS, "branch": 0}),
        ("turn.undo", {}),
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
        rig.model.will(ScriptedText("Talking"), ScriptedHang())
        await run_in_thread(rig.start_worker)
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


async def test_versions_and_undo_over_one_socket(ada, session):
    """E2, A30.5, A30.6: every tab gets a new snapshot"""
    name = str(session.pk)
    async with engine() as rig:
        await run_in_thread(rig.start_worker)
        async with connected(ada) as socket, connected(ada) as other_tab:
            for tab in (socket, other_tab):
                await tab.ask("session.subscribe", session_id=name)
                await tab.event("session.snapshot")
            first = (await socket.ask("message.send", session_id=name, text="One"))["message_id"]
            await socket.event("turn.succeeded")
            edited = await socket.ask("branch.edit", session_id=name, message_id=first, text="Uno")
            assert edited["state"] == "started"
            page = await other_tab.event("session.snapshot")
            assert [row["content"] for row in page["turn"]["messages"]] == ["Uno"]
            await socket.event("turn.succeeded")
            shown = edited["message_id"]
            switched = await socket.ask("branch.switch", session_id=name, message_id=shown, branch=0)
            assert (switched["message_id"], switched["versions"]) == (first, 2)
            page = await other_tab.event("session.snapshot")
            assert [row["content"] for row in page["messages"]] == ["One", "Aye."]
            undone = await socket.ask("turn.undo", session_id=name)
            assert undone["text"] == "One"
            assert (await other_tab.event("session.snapshot"))["messages"] == []


async def test_a_question_is_answered_over_the_socket(ada, session):
    """A12.2, A12.4: the first answer counts"""
    name = str(session.pk)
    async with engine() as rig:
        rig.model.will(ScriptedCall("ask_user", {"question": "Where to?"}))
        rig.model.will(ScriptedText("South it is."))
        await run_in_thread(rig.start_worker)
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
        assert (await run_in_thread(Question.objects.get)).answer == "South"
