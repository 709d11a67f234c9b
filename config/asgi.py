"""The ASGI door: HTTP to Django, WebSockets to copilot's consumer."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)  # loads the apps before anything below imports a model

from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from config import tracing  # noqa: E402
from config.arrivals import Arrivals  # noqa: E402
from config.bodies import CappedBodies  # noqa: E402
from config.handler import OneCrossing  # noqa: E402
from config.staticfiles import StaticFiles  # noqa: E402
from config.threads import SharedThreads  # noqa: E402
from copilot.api.uploads import room_for  # noqa: E402
from copilot.routing import sockets  # noqa: E402

tracing.start("web")
requests = StaticFiles(SharedThreads(CappedBodies(OneCrossing(), room_for)))  # type: ignore[arg-type]  # Django's scope is a dict
served = ProtocolTypeRouter({"http": requests, "websocket": sockets})
application = Arrivals(served, proxies=settings.TRUSTED_PROXIES)
