"""Any path that is no door of ours, malformed ids among them: the same 404 for every method."""

from __future__ import annotations

from rest_framework.request import Request

from copilot.errors import NotFound
from linking.doors import BotDoor


class BotNowhere(BotDoor):
    schema = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete", "options"]

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound
