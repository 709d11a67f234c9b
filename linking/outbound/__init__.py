"""Turns become messages on the platforms, and single messages go there; the only writer of OutboundMessage (L19)."""

from linking.outbound.couriers import accounts, courier, forget, owed, settle
from linking.outbound.posting import (
    Note,
    answer_press,
    fetch_file,
    is_admin,
    mention,
    reach,
    recognised,
    say,
    server_name,
    show_typing,
)
from linking.outbound.records import keep_reply_token

__all__ = [
    "Note",
    "accounts",
    "answer_press",
    "courier",
    "fetch_file",
    "forget",
    "is_admin",
    "keep_reply_token",
    "mention",
    "owed",
    "reach",
    "recognised",
    "say",
    "server_name",
    "settle",
    "show_typing",
]
