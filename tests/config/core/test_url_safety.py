"""Which addresses are public (A24.1)."""

from __future__ import annotations

import pytest

from config.core.url_safety import (
    is_ip_address,
    is_local_name,
    is_public_address,
    is_valid_hostname,
    parse_numeric_address,
)


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
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"]
)
def test_the_open_internet_is_public(address: str) -> None:
    """A24.1"""
    assert is_public_address(address)


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
    assert is_ip_address("::1")
    assert not is_ip_address("one.example")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("host", "address"),
    [
        *((host, "127.0.0.1") for host in ("127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "017700000001")),
        ("::1", "::1"),
        *((host, "") for host in ("one.example", "", "1.2.3.4.5", "127.0.0.256", "١٢٧.1")),
    ],
)
def test_numbers_are_read_as_the_system_reads_them(host: str, address: str) -> None:
    assert parse_numeric_address(host) == address


@pytest.mark.parametrize(
    ("host", "possible"),
    [
        ("one.example", True),
        ("one.example.", True),
        ("töols.example", True),
        ("a" * 70 + ".example", False),
        ("a..example", False),
        (".example", False),
    ],
)
def test_a_name_that_no_host_can_have_is_known_without_asking(host: str, possible: bool) -> None:
    assert is_valid_hostname(host) is possible
