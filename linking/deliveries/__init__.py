"""Third-party bots are told what happened in their conversations: signed, in order, until they took it (L17)."""

from linking.deliveries.endpoints import Endpoint, delete, get, is_on, put, rotate
from linking.deliveries.noting import note, note_missed
from linking.deliveries.sending import DeliveryShown, page, purge_deliveries, redeliver, send_due

__all__ = [
    "DeliveryShown",
    "Endpoint",
    "delete",
    "get",
    "is_on",
    "note",
    "note_missed",
    "page",
    "purge_deliveries",
    "put",
    "redeliver",
    "rotate",
    "send_due",
]
