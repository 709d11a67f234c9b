"""A real web process under hostile clients: what it holds in memory and on disk stays bounded."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import redis

from bench.installation import directory_of
from bench.site import Site, raise_file_limit
from copilot.realtime.events import TextExtended, encode_event
from tests.support.raw_http_client import PING, SMALL_BUFFER, TEXT, Closed, RawSocket, connect
from tests.support.turn_engine import until

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.timeout(600)]
MEGABYTE = 2**20
LIMITS = ("SOCKETS_PER_ACCOUNT", "STREAMS_PER_ACCOUNT", "CONNECTIONS_PER_ADDRESS")


class DefaultSite(Site):
    """The bench's installation with the product's own limits."""

    def prepare(self, *, site_url: str, model: str, grace_seconds: int) -> None:
        super().prepare(site_url=site_url, model=model, grace_seconds=grace_seconds)
        for name in LIMITS:
            self.environment.pop(name, None)

    @property
    def web(self) -> psutil.Process:
        return self.process("web")

    def resident_bytes(self) -> int:
        return int(self.web.memory_info().rss)

    def spooled_bytes(self) -> int:
        """Of temporary files that the process holds open; they have no name."""
        total = 0
        for entry in Path(f"/proc/{self.web.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "(deleted)" in os.readlink(entry):
                    total += entry.stat().st_size
        return total

    def socket(self, *, buffer: int | None = None) -> RawSocket:
        """Of the first account, which owns the first session."""
        return RawSocket(self.url, headers=self.target(0).headers, buffer=buffer)

    def publish(self, session: str, text: str, count: int) -> None:
        """Straight into the log, as fast as Redis takes it."""
        event = encode_event(TextExtended(block_id="b", row_id="r", offset=0, delta=text), session_id=session)
        news = redis.Redis.from_url(self.valkey.url)
        [channel] = [name.decode() for name in news.pubsub_channels("*:live")]
        prefix = channel.removesuffix(":live")
        for number in range(count):
            cursor = news.xadd(f"{prefix}:{{{session}}}:log", {"k": "text.extended", "e": event})
            batch = [[session, "", [[cursor.decode(), "text.extended", event.decode()]]]]
            news.publish(channel, msgspec.msgpack.encode([number + 1, batch]))
        news.close()


@pytest.fixture(scope="module")
def site() -> Iterator[DefaultSite]:
    raise_file_limit()
    with directory_of("attack") as directory:
        made = DefaultSite(directory, users=4, sessions=20)
        try:
            made.start()
            yield made
        finally:
            made.stop()
            if (words := made.processes["provider"].stdout) is not None:
                words.close()


@contextlib.contextmanager
def grows_by_less_than(site: DefaultSite, megabytes: float) -> Iterator[None]:
    before = site.resident_bytes()
    yield
    grown = (site.resident_bytes() - before) / MEGABYTE
    print(f"grew by {grown:.1f} MB")
    assert grown < megabytes


def test_ten_sockets_that_never_read_hold_a_bounded_queue(site: DefaultSite) -> None:
    """30 MB of events for each of ten would be 300 MB."""
    session = site.seeded.sessions[0]
    sockets = [site.socket(buffer=SMALL_BUFFER) for _ in range(10)]
    for socket in sockets:
        socket.command("session.subscribe", ref=1, session_id=session)
        socket.next("ack")
    with grows_by_less_than(site, 60):
        site.publish(session, "x" * 100_000, 300)
    codes = Counter(_code(socket) for socket in sockets)
    assert codes == {4009: 10}
    for socket in sockets:
        socket.close()


def _code(socket: RawSocket) -> int:
    socket.line.settimeout(2)
    try:
        for frame in socket.frames():
            if isinstance(frame, Closed):
                return frame.code
    except OSError:
        return 0
    return 0


def test_two_thousand_sockets_of_one_account_are_fifty(site: DefaultSite) -> None:
    sockets = []
    with grows_by_less_than(site, 60):
        for _ in range(2_000):
            sockets.append(site.socket())
        for socket in sockets:
            socket.line.settimeout(0.01)
        told = Counter(next(_frames_at_hand(socket), "open") for socket in sockets)
    assert told == {"open": 50, 4429: 1_950}
    for socket in sockets:
        socket.close()
    until(lambda: _is_let_in(site))


def _frames_at_hand(socket: RawSocket) -> Iterator[int]:
    with contextlib.suppress(TimeoutError):
        for frame in socket.frames():
            if isinstance(frame, Closed):
                yield frame.code


def _is_let_in(site: DefaultSite) -> bool:
    socket = site.socket()
    socket.command("ping", ref=1)
    try:
        return isinstance(next(socket.frames()), dict)
    finally:
        socket.close()


@pytest.mark.parametrize(
    ("opcode", "payload", "last"), [(PING, b"p" * 125, True), (TEXT, b"", True), (0, b"", False)]
)
def test_a_hundred_megabytes_of_frames_are_not_kept(site, opcode, payload, last) -> None:
    socket = site.socket(buffer=SMALL_BUFFER)
    with grows_by_less_than(site, 30), contextlib.suppress(OSError):
        socket.send(TEXT, b"x", last=last)
        for _ in range(100):
            socket.send(opcode, payload, last=last, times=MEGABYTE // (len(payload) + 6))
    socket.close()


@pytest.mark.parametrize("head", [b"Content-Length: 200000000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", [b"/api/v1/sessions/import", b"/api/v1/files", b"/settings/account/import"])
def test_anonymous_uploads_reach_neither_disk_nor_memory(site: DefaultSite, path: bytes, head: bytes) -> None:
    lines = [connect(site.url) for _ in range(20)]
    piece = b"%x\r\n" % 65_536 + b"x" * 65_536 + b"\r\n" if b"chunked" in head else b"x" * 65_536
    spooled = 0
    with grows_by_less_than(site, 30):
        for line in lines:
            line.sendall(b"POST %s HTTP/1.1\r\nHost: testserver\r\n%s\r\n\r\n" % (path, head))
        for _ in range(50):
            for line in lines:
                with contextlib.suppress(OSError):
                    line.sendall(piece)
            spooled = max(spooled, site.spooled_bytes())
    assert spooled < MEGABYTE
    for line in lines:
        line.close()


def test_headers_and_bodies_that_trickle_are_given_up(site: DefaultSite) -> None:
    """Three hundred connections that never finish what they began are gone within half a minute."""
    heads = [connect(site.url) for _ in range(150)]
    tails = [connect(site.url) for _ in range(150)]
    for line in heads:
        line.sendall(b"GET / HTTP/1.1\r\nHost: ")
    for line in tails:
        line.sendall(b"POST /accounts/login/ HTTP/1.1\r\nHost: testserver\r\nContent-Length: 60000\r\n\r\nx")
    began = time.monotonic()

    def are_gone() -> bool:
        for line in (*heads, *tails):
            with contextlib.suppress(OSError):
                line.send(b"x")
        time.sleep(0.5)
        here = [one for one in site.web.net_connections() if one.laddr and one.laddr.port == site.port]
        return sum(one.status == "ESTABLISHED" for one in here) < 10

    until(are_gone, 60)
    assert time.monotonic() - began < 40
