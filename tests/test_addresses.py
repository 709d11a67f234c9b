"""Which addresses are public (A24.1)."""

from __future__ import annotations

import socket
import threading

import pytest

from copilot import addresses, mcp
from copilot.addresses import is_local_name, is_numeric, is_public
from tests import make


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.8.8", "168.63.129.16"),
        *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
        *("192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "fe80::1"),
        *("fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "64:ff9b::a00:1", "64:ff9b:1::1"),
        *("2001::1", "2001:db8::1", "2002:a00:1::1", "3fff::1", "fec0::1", "100::1", "5f00::1"),
        *("2600::5efe:10.0.0.1", "2600::200:5efe:a00:1", "2606:4700::1111%eth0"),
        *("", "example.com", "127.1", "0x7f000001", "2130706433", "017700000001"),
    ],
)
def test_what_is_not_public_is_known_in_every_spelling(address: str) -> None:
    """A24.1, A24.c1"""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"]
)
def test_the_open_internet_is_public(address: str) -> None:
    """A24.1"""
    assert is_public(address)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("x.localhost", True),
        ("metadata.google.internal", True),
        ("printer.local", True),
        ("example.com", False),
        ("local.example", False),
    ],
)
def test_names_of_this_network_are_known_without_asking(host: str, local: bool) -> None:
    """A24.1"""
    assert is_local_name(host) is local


def test_a_number_is_told_from_a_name() -> None:
    assert is_numeric("::1")
    assert not is_numeric("one.example")


# --- names that take for ever ------------------------------------------------------------------------


@pytest.fixture
def stuck_names(monkeypatch):
    """Names below slow.example are not answered until the test ends."""
    answering, asked = threading.Event(), threading.Semaphore(0)

    def look_up(host, *args, **options):
        if host.endswith("slow.example"):
            asked.release()
            assert answering.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield asked
    answering.set()
    for _ in range(addresses.LOOKUPS_AT_ONCE):  # all are free again before the next test
        assert addresses._free_lookups.acquire(timeout=30)
    for _ in range(addresses.LOOKUPS_AT_ONCE):
        addresses._free_lookups.release()


@pytest.mark.attack
def test_a_name_that_is_not_answered_in_time_is_left_to_the_connection(stuck_names):
    assert addresses.resolve_within("slow.example", 443, seconds=0.01) is None
    assert addresses.resolve_within("a.example", 443) == {"93.184.216.34"}


@pytest.mark.attack
def test_names_that_are_not_answered_hold_up_no_others(stuck_names):
    for number in range(addresses.LOOKUPS_AT_ONCE):
        assert addresses.resolve_within(f"n{number}.slow.example", 443, seconds=0.01) is None
        assert stuck_names.acquire(timeout=30)
    assert addresses.resolve_within("a.example", 443, seconds=30) is None  # at once: nobody waits in line
    assert not stuck_names.acquire(blocking=False)


@pytest.mark.attack
@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..example", ".example"])
def test_what_can_be_no_name_raises_as_an_unknown_one(host):
    with pytest.raises(socket.gaierror):
        addresses.resolve_within(host, 443)


@pytest.mark.attack
@pytest.mark.django_db
def test_a_server_whose_name_is_slow_is_saved_within_the_deadline(stuck_names, monkeypatch):
    monkeypatch.setattr(addresses.resolve_within, "__kwdefaults__", {"seconds": 0.01})
    assert mcp.add(make.ada().pk, mcp.Draft(name="mine", url="https://slow.example/")).version == 1
