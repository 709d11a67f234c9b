"""Which hosts may be reached from here: public addresses only, whatever they are written as (A24.1, L17)."""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from yarl import URL

# Python's own tables differ between patch releases, so the refused networks are spelled out (IANA's registries).
_REFUSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; clouds keep metadata there too
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata, on a public number
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# Only global unicast is public; mapped, compatible, NAT64, unique-local, link-local and multicast lie outside it.
_PUBLIC_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # tunnels that carry an IPv4 address in their last half

NOT_PUBLIC = "Only public addresses of the internet are reached."
_LOCAL_NAMES = frozenset({"localhost", "metadata", "instance-data"})
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".localdomain")


def is_public(address: str) -> bool:
    """Whether a numeric address lies on the open internet; text that is no address is not public."""
    try:
        number = ip_address(address)
    except ValueError:
        return False
    if isinstance(number, IPv4Address):
        return not any(number in network for network in _REFUSED_V4)
    return _is_public_v6(number)


def is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def numeric_address(host: str) -> str:
    """Return the address that a host spells in numbers, in any spelling the system's resolver reads, or nothing."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 127.1, 0x7f000001: no question to a name server
    except (OSError, UnicodeError):
        return ""


def is_possible_name(host: str) -> bool:
    """Tell by its form alone whether a host could have this name: no part is empty or longer than 63 bytes."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_local_name(host: str) -> bool:
    """Names that mean this machine, this network or a cloud's metadata, whatever they resolve to."""
    name = host.rstrip(".").lower()
    return name in _LOCAL_NAMES or name.endswith(_LOCAL_ENDINGS)


def belongs(url: URL, names: Collection[str]) -> str:
    """The one of `names` that the URL's host is, or lies below, however either is written; or nothing."""
    host = (url.raw_host or "").rstrip(".")
    spelled = {name: URL.build(scheme="http", host=name).raw_host for name in names}
    return next((name for name, raw in spelled.items() if host == raw or host.endswith(f".{raw}")), "")


def objection(url: URL, ports: Collection[int]) -> tuple[str, str] | None:
    """Why this URL is not reached, as a code and a sentence; what its name resolves to is yet to be seen."""
    if url.scheme not in {"http", "https"} or not url.host:
        return "invalid_url", "Only http and https URLs with a host can be fetched."
    if url.user is not None or url.password is not None:
        return "invalid_url", "URLs with a user name or password are not fetched."
    if url.port not in ports:
        listed = ", ".join(str(port) for port in sorted(ports))
        return "address_refused", f"Only these ports are reached: {listed}; not {url.port}."
    return ("address_refused", NOT_PUBLIC) if is_local_name(url.host) else None


def _is_public_v6(number: IPv6Address) -> bool:
    if number.scope_id is not None or number not in _PUBLIC_V6:
        return False
    if (int(number) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return False
    return not any(number in network for network in _REFUSED_V6)
