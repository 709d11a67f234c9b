"""Fetching from the open internet, tried against a server of our own (A24)."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import NoReturn

import pytest
from aiohttp import web

from config.core import url_safety
from copilot.tools.base import ToolError
from copilot.tools.web import http_client
from tests.support.local_web_server import FakeResolver, serve_locally
from tests.support.timeouts import PATIENCE_SECONDS


def client(port: int, **names: str) -> http_client.PublicHttpClient:
    """May reach 127.0.0.1 only, by these names."""
    known = {f"{name}.example": [[address]] for name, address in names.items()}
    return http_client.PublicHttpClient(
        ports={port}, unchecked={"127.0.0.1"}, resolver=FakeResolver(known), total_seconds=10
    )


async def refused(client: http_client.PublicHttpClient, url: str) -> str:
    with pytest.raises(ToolError) as caught:
        await client.fetch(url)
    return caught.value.code


async def hello(request: web.Request) -> web.StreamResponse:
    return web.Response(text=f"hello {request.host} {request.path_qs}")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"],
)
async def test_names_and_numbers_of_inner_networks_are_refused(address: str) -> None:
    """A24.c1"""
    host = f"[{address}]" if ":" in address else address
    by_name = http_client.PublicHttpClient(resolver=FakeResolver({"a.example": [[address]]}))
    assert await refused(by_name, "http://a.example/") == "address_refused"
    assert await refused(http_client.PublicHttpClient(), f"http://{host}/") == "address_refused"


@pytest.mark.parametrize(
    "spelling", ["127.1", "2130706433", "0x7f.0.0.1", "017700000001", "[::127.0.0.1]", "0"]
)
async def test_other_spellings_of_this_machine_are_refused(spelling: str) -> None:
    """A24.c1: the system's own resolver would read these as numbers"""
    assert await refused(http_client.PublicHttpClient(), f"http://{spelling}/") in {
        "address_refused",
        "invalid_url",
    }


async def test_one_inner_address_among_public_ones_refuses_the_name() -> None:
    """A24.1: every address"""
    mixed = http_client.PublicHttpClient(
        resolver=FakeResolver({"a.example": [["93.184.216.34", "10.0.0.1"]]})
    )
    assert await refused(mixed, "https://a.example/") == "address_refused"


async def test_a_name_that_changes_is_asked_once_and_the_checked_address_is_used() -> None:
    """A24.c1: between check and connect there is no second question"""
    async with serve_locally(hello) as port:
        names = FakeResolver({"a.example": [["127.0.0.1"], ["10.0.0.1"]]})
        way_out = http_client.PublicHttpClient(ports={port}, unchecked={"127.0.0.1"}, resolver=names)
        assert b"hello a.example" in (await way_out.fetch(f"http://a.example:{port}/")).body
        assert names.asked == ["a.example"]
        assert await refused(way_out, f"http://a.example:{port}/") == "address_refused"


async def test_slow_host_names_delay_no_other_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A24.1: their owners decide how long they take, and threads shared by all would wait for them"""
    real, answering = socket.getaddrinfo, threading.Event()

    def slow(host: str, *args: object, **options: object) -> object:
        if host.endswith(".example"):
            answering.wait(PATIENCE_SECONDS)
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    fetches = [
        asyncio.create_task(refused(http_client.PublicHttpClient(), f"http://n{n}.example/"))
        for n in range(40)
    ]
    try:
        await asyncio.wait_for(asyncio.to_thread(time.monotonic), PATIENCE_SECONDS / 2)
    finally:
        answering.set()
    assert set(await asyncio.gather(*fetches)) == {"unreachable"}


class SlowNames:
    """Answer no look-up until the test lets it; `asked` counts those that have a thread."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answering = threading.Event()

    def __call__(self, host: str, port: int, family: int) -> list[url_safety.AddressInfo]:
        if host.startswith("slow"):
            self.asked.release()
            assert self.answering.wait(PATIENCE_SECONDS)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(url_safety, "_get_address_info", slow)
    monkeypatch.setattr(url_safety, "_lookups", url_safety.LookupThreads())
    yield slow
    slow.answering.set()
    url_safety._lookups._threads.shutdown()
    assert not url_safety._lookups._running
    assert not url_safety._lookups._waiting


async def look_up(owner: str, host: str) -> str:
    url_safety.count_lookups_for(owner)
    [found] = await url_safety.SystemResolver().resolve(host, 443)
    return found["host"]


async def wait_until_asked(slow: SlowNames, times: int) -> None:
    for _ in range(times):
        assert await asyncio.to_thread(slow.asked.acquire, timeout=PATIENCE_SECONDS)


@pytest.mark.attack
async def test_an_account_with_slow_names_leaves_threads_to_others(
    slow_names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_safety, "LOOKUP_SECONDS", PATIENCE_SECONDS)
    names = [f"slow{n}.example" for n in range(2 * url_safety.MAX_RESOLVER_THREADS)]
    waiting = [asyncio.create_task(look_up("user:1", name)) for name in names]
    await wait_until_asked(slow_names, url_safety.LOOKUPS_PER_OWNER)
    assert await asyncio.wait_for(look_up("user:2", "quick.example"), PATIENCE_SECONDS) == "93.184.216.34"
    assert not slow_names.asked.acquire(blocking=False)
    slow_names.answering.set()
    assert set(await asyncio.gather(*waiting)) == {"93.184.216.34"}


@pytest.mark.attack
async def test_look_ups_that_nobody_awaits_count_until_they_end(
    slow_names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an account could start new ones as quickly as it gives up the old"""
    monkeypatch.setattr(url_safety, "LOOKUP_SECONDS", PATIENCE_SECONDS)
    names = [f"slow{n}.example" for n in range(3 * url_safety.LOOKUPS_PER_OWNER)]
    given_up = [asyncio.create_task(look_up("user:1", name)) for name in names]
    await wait_until_asked(slow_names, url_safety.LOOKUPS_PER_OWNER)
    for one in given_up:
        one.cancel()
    await asyncio.wait(given_up)
    last = asyncio.create_task(look_up("user:1", "slow.example"))
    assert await look_up("user:2", "quick.example")
    assert not slow_names.asked.acquire(blocking=False)
    slow_names.answering.set()
    assert await last
    assert slow_names.asked.acquire(blocking=False)
    assert not slow_names.asked.acquire(blocking=False)  # what was given up in line was never asked


@pytest.mark.attack
async def test_a_name_that_is_not_answered_in_time_is_unreachable(
    slow_names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_safety, "LOOKUP_SECONDS", 0.05)
    assert await refused(http_client.PublicHttpClient(), "http://slow.example/") == "unreachable"


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no such name"), socket.gaierror),
        (ValueError("an embedded null byte"), ValueError),
        (MemoryError(), RuntimeError),
    ],
)
async def test_a_look_up_that_fails_makes_room_for_the_next(
    problem: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(url_safety, "_get_address_info", fail)
    tried = [look_up("user:1", "a.example") for _ in range(3 * url_safety.LOOKUPS_PER_OWNER)]
    failures = await asyncio.gather(*tried, return_exceptions=True)
    assert {type(failure) for failure in failures} == {told}


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..example", ".example"])
async def test_what_can_be_no_name_is_the_name_of_no_host(host: str) -> None:
    """A24.1"""
    assert await refused(http_client.PublicHttpClient(), f"http://{host}/") == "unreachable"


async def test_the_socket_itself_refuses_what_a_resolver_let_through() -> None:
    """A24.1: the last look is at the address that is connected to"""
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.1", 80))
    with pytest.raises(url_safety.AddressNotPublic):
        url_safety.PublicAddressGuard()._make_socket(info)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://a.example/", "invalid_url"),
        ("file:///etc/passwd", "invalid_url"),
        ("//a.example/", "invalid_url"),
        ("http://", "invalid_url"),
        ("http://[::1/", "invalid_url"),
        ("http://a.example:99999/", "invalid_url"),
        ("http://user:secret@a.example/", "invalid_url"),
        ("http://user@a.example/", "invalid_url"),
        ("http://a.example:22/", "address_refused"),
        ("http://localhost/", "address_refused"),
        ("http://metadata.google.internal/", "address_refused"),
        ("http://nowhere.example/", "unreachable"),
    ],
)
async def test_urls_that_are_not_fetched(url: str, code: str) -> None:
    """A24.1"""
    names = FakeResolver({"a.example": [["93.184.216.34"]]})
    assert await refused(http_client.PublicHttpClient(resolver=names), url) == code


async def test_redirects_are_followed_with_their_own_names() -> None:
    """A24.1, A24.2"""

    async def hop(request: web.Request) -> web.StreamResponse:
        if request.path == "/start":
            raise web.HTTPFound("/middle")
        if request.path == "/middle":
            raise web.HTTPSeeOther(f"http://b.example:{port}/end?x=1#part")
        return await hello(request)

    async with serve_locally(hop) as port:
        fetched = await client(port, a="127.0.0.1", b="127.0.0.1").fetch(f"http://a.example:{port}/start")
    assert fetched.url == f"http://b.example:{port}/end?x=1"
    assert fetched.body.startswith(b"hello b.example")


@pytest.mark.parametrize(
    "target",
    [
        "http://10.0.0.1:{port}/",
        "http://inner.example:{port}/",
        "http://[::1]:{port}/",
        "http://127.0.0.2:{port}/",
    ],
)
async def test_a_redirect_to_an_inner_address_is_refused(target: str) -> None:
    """A24.c1"""

    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(target.format(port=port))

    async with serve_locally(away) as port:
        way_out = client(port, a="127.0.0.1", inner="10.0.0.1")
        assert await refused(way_out, f"http://a.example:{port}/") == "address_refused"


async def test_redirects_end_after_five_and_lead_to_the_web_only() -> None:
    """A24.1"""
    asked: list[str] = []

    async def around(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPFound("file:///etc/passwd" if request.path == "/file" else f"{request.path}x")

    async with serve_locally(around) as port:
        way_out = client(port, a="127.0.0.1")
        assert await refused(way_out, f"http://a.example:{port}/r") == "too_many_redirects"
        assert len(asked) == http_client.MAX_REDIRECTS + 1
        assert await refused(way_out, f"http://a.example:{port}/file") == "invalid_url"


async def test_a_redirect_leads_to_no_host_that_people_are_asked_about() -> None:
    """A32: an administrator may ask by host; who was asked about one was not asked about another"""

    async def away(request: web.Request) -> web.StreamResponse:
        if request.path == "/there":
            return web.Response(text="arrived")
        raise web.HTTPFound(f"http://www.bank.example:{request.url.port}/there")

    async with serve_locally(away) as at:
        known = FakeResolver(
            {name: [["127.0.0.1"]] for name in ("a.example", "bank.example", "www.bank.example")}
        )
        way_out = http_client.PublicHttpClient(ports={at}, unchecked={"127.0.0.1"}, resolver=known)
        with pytest.raises(ToolError, match="ask_first"):
            await way_out.fetch(f"http://a.example:{at}/", ask_first=["bank.example"])
        fetched = await way_out.fetch(f"http://bank.example:{at}/", ask_first=["bank.example"])
    assert fetched.body == b"arrived"


async def test_no_cookies_credentials_or_proxies_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A24.2"""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen: list[web.Request] = []

    async def cookie(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        if request.path == "/set":
            found = web.HTTPFound("/next")
            found.set_cookie("session", "secret")
            raise found
        return web.Response(text="ok")

    async with serve_locally(cookie) as port:
        await client(port, a="127.0.0.1").fetch(f"http://a.example:{port}/set")
    assert len(seen) == 2
    for request in seen:
        assert not {"Cookie", "Authorization", "Proxy-Authorization", "Referer"} & set(request.headers)


def zeroes(wbits: int) -> Iterator[bytes]:
    """Fifty megabytes in some fifty kilobytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    for _ in range(50):
        yield packer.compress(bytes(2**20))
    yield packer.flush()


@pytest.mark.parametrize(
    ("encoding", "wbits"), [("gzip", 31), ("deflate", 15), ("deflate", -15), ("identity", None)]
)
async def test_a_body_is_cut_at_five_mebibytes_however_it_is_packed(encoding: str, wbits: int | None) -> None:
    """A24.c1: 50 MB or a bomb"""
    body = bytes(50 * 2**20) if wbits is None else b"".join(zeroes(wbits))

    async def bomb(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    async with serve_locally(bomb) as port:
        fetched = await client(port, a="127.0.0.1").fetch(f"http://a.example:{port}/")
    assert (len(fetched.body), fetched.cut) == (http_client.MAX_BODY_BYTES, True)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
async def test_a_packed_body_is_read_whole(encoding: str) -> None:
    """A24.1"""
    plain = b"".join(f"line {number}\n".encode() for number in range(50_000))

    async def packed(request: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(plain), headers={"Content-Encoding": encoding})

    async with serve_locally(packed) as port:
        fetched = await client(port, a="127.0.0.1").fetch(f"http://a.example:{port}/")
    assert (fetched.body, fetched.cut) == (plain, False)


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
async def test_what_follows_a_packed_body_is_not_received(encoding: str, wbits: int) -> None:
    """A24.1: it would be kept beside the body, and copied with every piece that comes"""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    page = packer.compress(b"page") + packer.flush()
    hung_up = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": encoding})
        await response.prepare(request)
        try:
            await response.write(page)
            while True:
                await response.write(bytes(2**16))
        finally:
            hung_up.set()

    async with serve_locally(endless) as port:
        fetched = await client(port, a="127.0.0.1").fetch(f"http://a.example:{port}/")
        await asyncio.wait_for(hung_up.wait(), PATIENCE_SECONDS)
    assert (fetched.body, fetched.cut) == (b"page", False)


@pytest.mark.parametrize(("encoding", "body"), [("gzip", b"nonsense"), ("br", b"x"), ("gzip, gzip", b"x")])
async def test_a_body_that_cannot_be_unpacked_is_an_error(encoding: str, body: bytes) -> None:
    """A24.1"""

    async def strange(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    async with serve_locally(strange) as port:
        assert await refused(client(port, a="127.0.0.1"), f"http://a.example:{port}/") == "unreadable"


async def test_a_slow_drip_ends_when_the_time_is_over() -> None:
    """A24.c1, with a shorter time"""
    hung_up = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.02)
        finally:
            hung_up.set()

    async with serve_locally(drip) as port:
        way_out = http_client.PublicHttpClient(
            ports={port},
            unchecked={"127.0.0.1"},
            resolver=FakeResolver({"a.example": [["127.0.0.1"]]}),
            total_seconds=0.3,
        )
        assert await refused(way_out, f"http://a.example:{port}/") == "timeout"
        await asyncio.wait_for(hung_up.wait(), PATIENCE_SECONDS)


def test_the_whole_fetch_fits_into_the_tools_time() -> None:
    """A24.1, A32"""
    from copilot.tools.builtin import web_fetch

    assert web_fetch.TOOL.timeout_seconds == 30 > http_client.TOTAL_TIMEOUT_SECONDS
