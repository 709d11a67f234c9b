"""Models of linking and their database constraints, one module per idea."""

from linking.models.bot_keys import BotKey
from linking.models.conversations import (
    Button,
    OutboundMessage,
    PlatformConversation,
)
from linking.models.deliveries import (
    Delivery,
    DeliveryEndpoint,
)
from linking.models.fields import (
    PLATFORM_ID_PATTERN,
    PLATFORMS,
    Platform,
)
from linking.models.links import (
    LinkToken,
    PlatformLink,
    PlatformUserLink,
)
from linking.models.updates import (
    BotRunner,
    IdempotencyKey,
    PlatformUpdate,
)
from linking.models.usage import (
    CapReservation,
    LinkUsage,
)

__all__ = [
    "PLATFORMS",
    "PLATFORM_ID_PATTERN",
    "BotKey",
    "BotRunner",
    "Button",
    "CapReservation",
    "Delivery",
    "DeliveryEndpoint",
    "IdempotencyKey",
    "LinkToken",
    "LinkUsage",
    "OutboundMessage",
    "Platform",
    "PlatformConversation",
    "PlatformLink",
    "PlatformUpdate",
    "PlatformUserLink",
]
