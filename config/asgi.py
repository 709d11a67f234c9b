"""The ASGI door: HTTP to Django, WebSockets to copilot's consumer."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
http = get_asgi_application()  # loads the apps before anything below imports a model

from channels.routing import ProtocolTypeRouter  # noqa: E402

from config import tracing  # noqa: E402
from config.bodies import CappedBodies  # noqa: E402
from config.threads import SharedThreads  # noqa: E402
from copilot.api.uploads import room_for  # noqa: E402
from copilot.routing import sockets  # noqa: E402

tracing.start("web")
application = SharedThreads(CappedBodies(ProtocolTypeRouter({"http": http, "websocket": sockets}), room_for))
