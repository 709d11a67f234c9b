"""Turns become messages on the platforms, and single messages go there; the only writer of OutboundMessage (L19)."""

from linking.outbound.couriers import accounts, courier, forget, owed
from linking.outbound.posting import (
    answer_press,
    change,
    fetch_file,
    is_admin,
    post,
    recognised,
    show_typing,
    whisper,
)
from linking.outbound.records import keep_reply_token

__all__ = [
    "accounts",
    "answer_press",
    "change",
    "courier",
    "fetch_file",
    "forget",
    "is_admin",
    "keep_reply_token",
    "owed",
    "post",
    "recognised",
    "show_typing",
    "whisper",
]
