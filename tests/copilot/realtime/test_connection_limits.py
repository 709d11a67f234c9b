"""Clients that do not read, do not finish or open too much: what they cost is bounded, and they are told why."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import httpx
import pytest

from config.core.client_address import get_public_network
from config.core.redis import get_redis
from config.http import web_server
from copilot.accounts import api_keys
from copilot.realtime import connections, event_log, fanout, redis_keys
from copilot.realtime.connections import (
    ACCOUNT_FULL,
    ADDRESS_FULL,
    CONNECTION_COUNTS,
    CONNECTION_REGISTRY,
    ConnectionCounts,
)
from copilot.realtime.consumer import _SocketQueues
from copilot.realtime.events import TextExtended
from tests.support import factories
from tests.support.asgi_server import served
from tests.support.raw_http_client import CONTINUATION, PING, SMALL_BUFFER, TEXT, RawSocket, connect, is_cut
from tests.support.rest_clients import signed_in
from tests.support.turn_engine import until
from tests.support.waiting_requests import list_waiting_requests

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]
KILOBYTE, MEGABYTE = 2**10, 2**20


@pytest.fixture(scope="module")
def site():
    with served(sockets=True) as address:
        yield address


@pytest.fixture
def ada():
    return factories.ada()


@pytest.fixture
def session(ada):
    return factories.session(ada, title="Boats")


@pytest.fixture
def opened(site, ada):
    """Sockets of Ada's, by one login; all closed at the end, and forgotten by the server."""
    made: list[RawSocket] = []
    cookie = {"Cookie": f"sessionid={signed_in(ada)}"}

    def open_one(**options) -> RawSocket:
        made.append(RawSocket(site, headers=cookie, **options))
        return made[-1]

    yield open_one
    for socket in made:
        socket.close()
    until(lambda: not CONNECTION_REGISTRY._held)


def publish_much(session, megabytes: int) -> None:
    for _ in range(10 * megabytes):
        publish_100_kilobytes(session)


def publish_100_kilobytes(session) -> None:
    event = TextExtended(block_id="b", row_id="r", offset=0, delta="x" * 100 * KILOBYTE)
    event_log.append_events(str(session.pk), [(event, None)])


# --- who does not read -------------------------------------------------------------------------------


def test_an_unread_socket_is_closed_with_a_code_and_resumed_by_its_cursor(opened, session, settings):
    settings.SOCKET_QUEUE_BYTES = 256 * KILOBYTE
    publish_much(session, 1)
    socket = opened(buffer=SMALL_BUFFER)
    socket.command("session.subscribe", ref=1, session_id=str(session.pk))
    cursor = socket.next("session.snapshot")["cursor"]
    assert socket.next("ack")["ref"] == 1
    while str(session.pk) in fanout.EVENT_FANOUT._sessions:  # the kernel takes some megabytes first
        publish_much(session, 1)
    read = list(socket.frames())
    assert (read[-1].code, read[-1].reason) == (4009, "too_slow")
    cursors = [event["cursor"] for event in read[:-1]]
    settings.SOCKET_QUEUE_BYTES = 64 * MEGABYTE
    again = opened()
    again.command("session.subscribe", ref=2, session_id=str(session.pk), cursor=[cursor, *cursors][-1])
    rest = again.until("ack", "error")
    assert rest.pop()["kind"] == "ack"
    published = [entry.cursor for entry in event_log.read_recent(str(session.pk), count=1_000)][10:]
    assert len(rest) > 0
    assert cursors + [event["cursor"] for event in rest] == published


def test_all_sockets_of_a_process_have_one_bound_together(opened, session, settings):
    """Who is behind when it is reached makes room for the others."""
    settings.SOCKET_QUEUES_BYTES = MEGABYTE
    settings.SOCKET_QUEUE_BYTES = 64 * MEGABYTE
    publish_much(session, 1)
    behind, reading = opened(buffer=SMALL_BUFFER), opened()
    for socket in (behind, reading):
        socket.command("session.subscribe", ref=1, session_id=str(session.pk))
        socket.next("ack")
    while len(fanout.EVENT_FANOUT._sessions[str(session.pk)]) == 2:
        publish_100_kilobytes(session)
        reading.next("text.extended")  # so that it has nothing waiting when the next one comes
    assert behind.closed().code == 4009
    reading.command("ping", ref=2)
    assert reading.next("ack")["ref"] == 2
    behind.close()
    reading.close()
    until(lambda: not CONNECTION_REGISTRY._held)
    assert _SocketQueues.total_bytes == 0


def test_answers_that_nobody_reads_keep_further_commands_waiting(opened, ada, session, settings):
    """Sixty pages of the conversation would be 6 MB; one waits, and the client's own line holds the rest back."""
    settings.SOCKET_QUEUE_BYTES = 64 * KILOBYTE
    factories.many_messages(session, 50, length=8_000)
    held: list[int] = []
    socket = opened(buffer=SMALL_BUFFER)
    for number in range(60):
        socket.command("session.subscribe", ref=number, session_id=str(session.pk))
    until(lambda: CONNECTION_REGISTRY._held)
    [consumer] = [
        one._on_revoked.__self__ for held_by in CONNECTION_REGISTRY._held.values() for one in held_by
    ]

    def waits_for_room() -> bool:
        held.append(consumer._queued_bytes)
        return consumer._room_available is not None

    until(waits_for_room)
    assert max(held) < 2 * MEGABYTE
    acks = [socket.next("ack")["ref"] for _ in range(60)]
    assert acks == list(range(60))


def test_a_stream_that_nobody_reads_is_cut_off(site, ada, session, settings, monkeypatch):
    """Until then it holds what the queue and one event take."""
    settings.SOCKET_QUEUE_BYTES = 256 * KILOBYTE
    monkeypatch.setattr(web_server, "UNREAD_OUTPUT_TIMEOUT_SECONDS", 0.5)
    line = connect(site, buffer=SMALL_BUFFER)
    token = api_keys.create_api_key(ada).token
    path = f"/api/v1/sessions/{session.pk}/stream"
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: testserver\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    until(lambda: fanout.EVENT_FANOUT._sessions.get(str(session.pk)))

    def is_cut_off() -> bool:
        """The kernel takes some megabytes first."""
        publish_100_kilobytes(session)
        followers = tuple(fanout.EVENT_FANOUT._sessions.get(str(session.pk), ()))
        assert all(follower.listener._bytes <= 400 * KILOBYTE for follower in followers)
        return not CONNECTION_REGISTRY._held and not followers

    until(is_cut_off)
    line.close()


# --- who sends too much ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "last", "reason"),
    [
        (PING, True, "too_many_pings"),
        (CONTINUATION, False, "too_many_fragments"),
        (TEXT, True, "too_many_requests"),
    ],
    ids=["pings", "empty fragments", "empty frames"],
)
def test_a_flood_of_frames_closes_the_socket(opened, opcode, last, reason):
    socket = opened()
    if opcode == CONTINUATION:
        socket.send(TEXT, b"x", last=False)
    socket.send(opcode, last=last, times=3_000)
    closed = socket.closed()
    assert (closed.code, closed.reason) == (4008, reason)
    until(lambda: not CONNECTION_REGISTRY._held)


def test_a_socket_that_was_closed_for_its_speed_leaves_nothing_behind(opened):
    """What it sent after the last command that was taken is dropped, and it is counted no more."""
    socket = opened()
    socket.send(TEXT, b'{"kind":"ping"}', times=100)
    assert socket.closed().code == 4008
    until(lambda: not CONNECTION_REGISTRY._held and not CONNECTION_COUNTS._held)


def test_a_long_ref_is_refused_and_not_repeated(opened):
    socket = opened()
    socket.command("ping", ref="x" * 128)
    assert socket.next()["ref"] == "x" * 128
    refs: list[object] = ["x" * 129, 10**30, {"deep": []}]
    for ref in refs:
        socket.command("ping", ref=ref)
        answer = socket.next()
        assert (answer["kind"], answer["code"], answer["ref"]) == ("error", "invalid_request", None)


def test_an_error_repeats_little_of_what_was_sent(opened):
    socket = opened()
    for fields in ({"kind": "x" * 100_000}, {"kind": "ping", "y" * 100_000: 1}):
        socket.command(**fields)
        assert len(socket.next()["message"]) < 2_000


@pytest.mark.parametrize(
    "sent",
    [
        b"X-Long: " + b"x" * 300 * KILOBYTE,
        b"a: b\r\n" * 3_000,
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"x" * 300 * KILOBYTE,
    ],
    ids=["one long header", "many headers", "a long trailer"],
)
def test_headers_without_an_end_are_refused(site, sent):
    line = connect(site)
    with contextlib.suppress(ConnectionError):  # it may be cut while it sends
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: testserver\r\n" + sent)
    assert is_cut(line)


def test_headers_that_do_not_come_are_not_waited_for(site, monkeypatch):
    monkeypatch.setattr(web_server, "HEADER_TIMEOUT_SECONDS", 0.3)
    line = connect(site)
    line.sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert is_cut(line)


def test_a_crowd_that_sends_nothing_is_thinned_out(site, monkeypatch):
    monkeypatch.setattr(web_server, "MAX_WAITING_PER_ADDRESS", 5)
    lines = [connect(site) for _ in range(12)]
    for line in lines:
        line.settimeout(0.05)
    until(lambda: sum(map(is_cut, lines)) >= 7)
    assert sum(not is_cut(line) for line in lines) == 5


def test_requests_in_advance_are_bounded(site):
    line = connect(site)
    line.sendall(b"GET /healthz HTTP/1.1\r\nHost: testserver\r\n\r\n" * 100)
    assert is_cut(line)


# --- who opens too much ------------------------------------------------------------------------------


def test_an_account_has_so_many_sockets_and_a_closed_one_makes_room(opened, settings):
    settings.SOCKETS_PER_ACCOUNT = 3
    first, *_ = [opened() for _ in range(3)]
    refused = opened().closed()
    assert (refused.code, refused.reason) == (4429, "too_many_connections")
    first.close()
    name = redis_keys.connections_key("sockets", f"user:{factories.ada().pk}")
    until(lambda: get_redis().hvals(name) == [b"2"])
    fourth = opened()
    fourth.command("ping", ref=1)
    assert fourth.next()["kind"] == "ack"


def test_of_many_sockets_at_once_as_many_are_let_in_as_may_be(site, ada, settings):
    """Over two processes, of which one has no memory of what the other holds."""
    settings.SOCKETS_PER_ACCOUNT = 10
    name, address = (
        redis_keys.connections_key("sockets", "user:1"),
        redis_keys.connections_key("address", "x"),
    )
    barrier, answers = threading.Barrier(40), []
    processes = [ConnectionCounts(), ConnectionCounts()]

    def open_one(number: int) -> None:
        barrier.wait()
        answers.append(processes[number % 2].count_opened(name, address, account_limit=10, address_limit=100))

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=str) == [ACCOUNT_FULL] * 30 + [None] * 10


def test_an_address_has_a_limit_on_connections_over_all_users():
    counts = ConnectionCounts()
    where = redis_keys.connections_key("address", "192.0.2.1")
    for number in range(3):
        assert counts.count_opened(f"user {number}", where, account_limit=9, address_limit=3) is None
    assert counts.count_opened("user 4", where, account_limit=9, address_limit=3) == ADDRESS_FULL
    assert counts.count_opened("user 4", "another", account_limit=9, address_limit=3) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("93.184.216.34", "93.184.216.34/32"),
        ("::ffff:93.184.216.34", "93.184.216.34/32"),
        ("2606:2800:220:1:248:1893:25c8:1946", "2606:2800:220:1::/64"),
        ("2606:2800:220:1::1", "2606:2800:220:1::/64"),
        ("10.0.0.7", None),  # a proxy that was not announced, or an office's own network
        ("127.0.0.1", None),
        ("::1", None),
        ("", None),
        ("testclient", None),
    ],
)
def test_addresses_of_one_customer_count_together_and_private_ones_not_at_all(address, network):
    assert get_public_network(address) == network


def test_connections_of_a_killed_process_are_forgotten(redis_clean):
    name, where = redis_keys.connections_key("sockets", "user:1"), redis_keys.connections_key("address", "x")
    killed, living = ConnectionCounts(), ConnectionCounts()
    for _ in range(2):
        assert killed.count_opened(name, where, account_limit=2, address_limit=9) is None
    assert living.count_opened(name, where, account_limit=2, address_limit=9) == ACCOUNT_FULL
    assert (
        0
        < get_redis().ttl(redis_keys.web_process_key(killed.process))
        <= connections.PROCESS_LIFETIME_SECONDS
    )
    get_redis().delete(redis_keys.web_process_key(killed.process))  # as its end of life would
    assert living.count_opened(name, where, account_limit=2, address_limit=9) is None


def test_counts_that_redis_lost_are_written_again(redis_clean):
    name, where = redis_keys.connections_key("sockets", "user:1"), redis_keys.connections_key("address", "x")
    counts = ConnectionCounts()
    for _ in range(2):
        counts.count_opened(name, where, account_limit=2, address_limit=9)
    get_redis().flushdb()
    counts.renew_process()
    assert ConnectionCounts().count_opened(name, where, account_limit=2, address_limit=9) == ACCOUNT_FULL
    counts.uncount_locally(name, where)
    counts.count_closed([name, where])
    assert ConnectionCounts().count_opened(name, where, account_limit=2, address_limit=9) is None


# --- streams -----------------------------------------------------------------------------------------


def test_an_account_has_so_many_streams_whatever_their_form(site, ada, session, settings):
    settings.STREAMS_PER_ACCOUNT = 1
    turn = factories.turn(session, "running")
    headers = {"Authorization": f"Bearer {api_keys.create_api_key(ada).token}"}
    ways = list_waiting_requests(session, turn)
    with httpx.Client(base_url=site, headers=headers, timeout=30) as client:
        with client.stream("GET", ways["stream"][1]) as held:
            assert held.status_code == 200
            for name, (method, path, body) in ways.items():
                refused = client.request(method, path, json=body)
                assert refused.status_code == 429, name
                assert refused.headers["Retry-After"] == "30", name
                assert refused.json()["error"]["code"] == "too_many_connections", name
        until(
            lambda: (
                not CONNECTION_COUNTS._held
                and not get_redis().keys(redis_keys.connections_key("streams", "*"))
            )
        )
        with client.stream("GET", ways["stream"][1]) as again:
            assert again.status_code == 200
    until(lambda: not CONNECTION_COUNTS._held and not CONNECTION_REGISTRY._held)


def test_a_request_that_is_cancelled_while_it_is_let_in_holds_no_place(ada, session, settings):
    """The thread that counts it ends after the caller has gone."""
    from config.core.db import run_in_thread
    from copilot.realtime import connections

    credential = connections.ConnectionCredential(ada.pk)

    async def cancelled() -> None:
        entering = asyncio.create_task(
            run_in_thread(connections.open_connection, "streams", credential, "192.0.2.1")
        )
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(cancelled())
    until(lambda: not CONNECTION_COUNTS._held)
