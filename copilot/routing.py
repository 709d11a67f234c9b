"""Where sockets lead: `/ws/` to the chat consumer, anything else to a refusal."""

from __future__ import annotations

from channels.routing import URLRouter
from django.urls import path

from copilot.realtime.consumer import ChatConsumer

websocket_router = URLRouter([path("ws/", ChatConsumer.as_asgi())])
