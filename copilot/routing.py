"""Where sockets lead: `/ws/` to the chat consumer, anything else to a refusal."""

from __future__ import annotations

from channels.routing import URLRouter
from django.urls import path

from copilot.consumers import ChatConsumer

sockets = URLRouter([path("ws/", ChatConsumer.as_asgi())])
