"""One conversation per place, what a bot's requests were answered, what buttons mean: the only writer of these (L12, L15)."""

from linking.conversations.buttons import button, forget_buttons, offer, purge_buttons
from linking.conversations.closing import close_of_link, close_of_user_link, forget_places
from linking.conversations.places import (
    Bot,
    Open,
    Payer,
    Where,
    in_session,
    is_of,
    of_bot,
    open_for,
    opened_at,
    owner_of_file,
    payer_of,
    renew,
    session_asking,
    session_at,
    sessions_at,
)
from linking.conversations.reaching import mark_unreachable, move_place, open_place, shut_place
from linking.conversations.started import Claimed, Known, claim, keep, let_go, purge_started

__all__ = [
    "Bot",
    "Claimed",
    "Known",
    "Open",
    "Payer",
    "Where",
    "button",
    "claim",
    "close_of_link",
    "close_of_user_link",
    "forget_buttons",
    "forget_places",
    "in_session",
    "is_of",
    "keep",
    "let_go",
    "mark_unreachable",
    "move_place",
    "of_bot",
    "offer",
    "open_for",
    "open_place",
    "opened_at",
    "owner_of_file",
    "payer_of",
    "purge_buttons",
    "purge_started",
    "renew",
    "session_asking",
    "session_at",
    "sessions_at",
    "shut_place",
]
