"""Short-lived, one-use tickets with which a browser elsewhere may open a socket (E3)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import msgspec

from copilot.live import keys
from copilot.live.client import blocking

TICKET_SECONDS = 60


@dataclass(frozen=True)
class Redeemed:
    user_id: int
    scopes: frozenset[str] | None  # of the key that asked for the ticket; None: a person did
    proof: bytes = b""  # of the credential it was bought with: the ticket ends with that


def issue(user_id: int, scopes: frozenset[str] | None = None, proof: bytes = b"") -> str:
    ticket = secrets.token_urlsafe(32)
    value = msgspec.json.encode((user_id, None if scopes is None else sorted(scopes), proof))
    blocking().set(keys.ticket(_digest(ticket)), value, ex=TICKET_SECONDS)
    return ticket


def redeem(ticket: str) -> Redeemed | None:
    """Who a ticket was issued to; it is spent by asking."""
    value = blocking().getdel(keys.ticket(_digest(ticket)))
    if value is None:
        return None
    assert isinstance(value, bytes)
    user_id, scopes, proof = msgspec.json.decode(value, type=tuple[int, list[str] | None, bytes])
    return Redeemed(user_id, None if scopes is None else frozenset(scopes), proof)


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
