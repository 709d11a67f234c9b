"""One conversation per place, and what a bot's requests were answered: the only writer of both tables (L12, L15)."""

from linking.conversations.closing import close_of_link, close_of_user_link, forget_places
from linking.conversations.places import (
    Open,
    Payer,
    Where,
    in_session,
    open_for,
    opened_at,
    payer_of,
    renew,
    sessions_at,
)
from linking.conversations.started import Claimed, Known, claim, keep, let_go, purge_started

__all__ = [
    "Claimed",
    "Known",
    "Open",
    "Payer",
    "Where",
    "claim",
    "close_of_link",
    "close_of_user_link",
    "forget_places",
    "in_session",
    "keep",
    "let_go",
    "open_for",
    "opened_at",
    "payer_of",
    "purge_started",
    "renew",
    "sessions_at",
]
