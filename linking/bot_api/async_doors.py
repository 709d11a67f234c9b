"""A bot's door that waits: the same checks as the others, on a thread; then a coroutine that holds none."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from copilot.errors import Refused
from copilot.queries import readers
from linking.doors import BotDoor

NAMED: tuple[type[Exception], ...] = (
    Refused,
    APIException,
    Http404,
    OperationalError,
    InterfaceError,
    *readers.OUTAGES,
)


class AsyncBotDoor(BotDoor):
    http_method_names = ["get"]

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            await readers.in_thread(self.initial, self.request, *args, **kwargs)
            if request.method != "GET":
                self.http_method_not_allowed(self.request)
            response = await self.get(self.request, **kwargs)
        except NAMED as problem:
            response = self.handle_exception(problem)
        return self.finalize_response(self.request, response, *args, **kwargs)

    async def get(self, request: Request, **kwargs: object) -> HttpResponseBase:
        raise NotImplementedError
