"""Which addresses are public (A24.1)."""

from __future__ import annotations

import pytest
from yarl import URL

from config.core.url_safety import (
    NOT_PUBLIC_MESSAGE,
    AddressNotPublic,
    PublicAddressGuard,
    find_url_problem,
    get_host_and_port,
    is_ip_address,
    is_local_name,
    is_public_address,
    is_valid_hostname,
    match_host,
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
        ("metadata", True),
        ("instance-data", True),
        *((f"nas{suffix}", True) for suffix in (".intranet", ".lan", ".home.arpa", ".localdomain")),
        ("lan", False),
        ("example.com", False),
        ("local.example", False),
    ],
)
def test_names_of_this_network_are_known_without_asking(host: str, local: bool) -> None:
    """A24.1"""
    assert is_local_name(host) is local


def test_a_number_is_distinguished_from_a_name() -> None:
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


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("https://one.example:8443/a?b", "one.example:8443"),
        ("http://one.example", "one.example"),
        ("null", ""),
        ("https://[your-domain]/", ""),
        ("https://one.example:99999/", ""),
    ],
)
def test_an_origin_is_read_as_a_host_header_would_name_it(text: str, named: str) -> None:
    assert get_host_and_port(text) == named


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://one.example/", None),
        ("http://one.example:8080/", None),
        ("ftp://one.example/", ("invalid_url", "Only http and https URLs with a host can be fetched.")),
        ("http:///path", ("invalid_url", "Only http and https URLs with a host can be fetched.")),
        ("https://ada@one.example/", ("invalid_url", "URLs with a user name or password are not fetched.")),
        ("https://:word@one.example/", ("invalid_url", "URLs with a user name or password are not fetched.")),
        (
            "http://one.example:22/",
            ("address_refused", "Only these ports are reached: 80, 443, 8080; not 22."),
        ),
        ("http://localhost/", ("address_refused", NOT_PUBLIC_MESSAGE)),
    ],
)
def test_a_url_that_must_not_be_requested_is_refused_with_its_reason(
    url: str, problem: tuple[str, str] | None
) -> None:
    """A24.1"""
    assert find_url_problem(URL(url), {8080, 443, 80}) == problem


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("https://one.example/", "one.example"),
        ("https://www.one.example./", "one.example"),
        ("https://xn--tols-5qa.example/", "töols.example"),
        ("https://noone.example/", ""),
        ("https://example/", ""),
    ],
)
def test_a_host_belongs_to_the_entry_it_equals_or_lies_under(url: str, entry: str) -> None:
    assert match_host(URL(url), ["two.example", "one.example", "töols.example"]) == entry


def test_an_address_that_is_not_public_is_refused_when_it_is_connected_to() -> None:
    """A24.1"""
    guard = PublicAddressGuard(unchecked=["127.0.0.1"])
    guard.check_address("127.0.0.1")
    guard.check_address("1.1.1.1")
    with pytest.raises(AddressNotPublic):
        guard.check_address("127.0.0.2")
