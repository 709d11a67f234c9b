"""Short-lived, one-use tickets with which a browser elsewhere may open a socket (E3)."""

from __future__ import annotations

import hashlib
import secrets

from copilot.live import keys
from copilot.live.client import blocking

TICKET_SECONDS = 60


def issue(user_id: int) -> str:
    ticket = secrets.token_urlsafe(32)
    blocking().set(keys.ticket(_digest(ticket)), user_id, ex=TICKET_SECONDS)
    return ticket


def redeem(ticket: str) -> int | None:
    """The user a ticket was issued to; it is spent by asking."""
    user_id = blocking().getdel(keys.ticket(_digest(ticket)))
    return int(user_id) if user_id is not None else None


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
