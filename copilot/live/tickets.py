"""Short-lived, one-use tickets with which a browser elsewhere may open a socket (E3)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from copilot.live import keys
from copilot.live.client import blocking

TICKET_SECONDS = 60


@dataclass(frozen=True)
class Redeemed:
    user_id: int
    scopes: frozenset[str] | None  # of the key that asked for the ticket; None: a person did


def issue(user_id: int, scopes: frozenset[str] | None = None) -> str:
    ticket = secrets.token_urlsafe(32)
    value = str(user_id) if scopes is None else f"{user_id}:{' '.join(sorted(scopes))}"
    blocking().set(keys.ticket(_digest(ticket)), value, ex=TICKET_SECONDS)
    return ticket


def redeem(ticket: str) -> Redeemed | None:
    """Who a ticket was issued to; it is spent by asking."""
    value = blocking().getdel(keys.ticket(_digest(ticket)))
    if value is None:
        return None
    assert isinstance(value, bytes)
    user_id, colon, scopes = value.decode().partition(":")
    return Redeemed(int(user_id), frozenset(scopes.split()) if colon else None)


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
