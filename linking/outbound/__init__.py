"""Turns become messages on the platforms, and single messages go there; the only writer of OutboundMessage (L19)."""

from linking.outbound.couriers import accounts, courier, forget, owed
from linking.outbound.posting import (
    answer_press,
    fetch_file,
    is_admin,
    mention,
    post,
    recognised,
    server_name,
    show_typing,
    whisper,
)
from linking.outbound.records import keep_reply_token

__all__ = [
    "accounts",
    "answer_press",
    "courier",
    "fetch_file",
    "forget",
    "is_admin",
    "keep_reply_token",
    "mention",
    "owed",
    "post",
    "recognised",
    "server_name",
    "show_typing",
    "whisper",
]
