"""Route WebSockets: `/ws/` goes to the chat consumer, any other path is refused."""

from __future__ import annotations

from channels.routing import URLRouter
from django.urls import path

from copilot.realtime.consumer import ChatConsumer

websocket_router = URLRouter([path("ws/", ChatConsumer.as_asgi())])
