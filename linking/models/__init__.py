"""Tables of linking, and the rules the database itself keeps (L3); by idea, one module each."""

from linking.models.conversations import Button, OutboundMessage, PlatformConversation
from linking.models.deliveries import Delivery, DeliveryEndpoint
from linking.models.inbox import BotRunner, PlatformUpdate, StartedTurn
from linking.models.keys import BotKey
from linking.models.links import LinkToken, PlatformLink, PlatformUserLink
from linking.models.usage import CapReservation, LinkUsage
from linking.models.values import PLATFORM_ID, PLATFORMS, Platform

__all__ = [
    "PLATFORMS",
    "PLATFORM_ID",
    "BotKey",
    "BotRunner",
    "Button",
    "CapReservation",
    "Delivery",
    "DeliveryEndpoint",
    "LinkToken",
    "LinkUsage",
    "OutboundMessage",
    "Platform",
    "PlatformConversation",
    "PlatformLink",
    "PlatformUpdate",
    "PlatformUserLink",
    "StartedTurn",
]
