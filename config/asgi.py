"""The ASGI application: HTTP to Django, WebSockets to copilot's consumer."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)  # loads the apps before anything below imports a model

from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from config import tracing  # noqa: E402
from config.http.body_limits import BodyLimitMiddleware  # noqa: E402
from config.http.handler import (  # noqa: E402
    CorsMiddleware,
    RequestHeadersMiddleware,
    SingleHopASGIHandler,
    StaticFilesMiddleware,
    ThreadPoolMiddleware,
)
from copilot.api.uploads import get_upload_allowance  # noqa: E402
from copilot.routing import websocket_router  # noqa: E402

tracing.start_tracing("web")
django_application = BodyLimitMiddleware(SingleHopASGIHandler(), get_upload_allowance)  # type: ignore[arg-type]  # Django's scope is a dict
http_application = CorsMiddleware(StaticFilesMiddleware(ThreadPoolMiddleware(django_application)))
protocol_router = ProtocolTypeRouter({"http": http_application, "websocket": websocket_router})
application = RequestHeadersMiddleware(protocol_router, proxies=settings.TRUSTED_PROXIES)
