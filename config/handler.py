"""Django's door for requests, with fewer crossings between its event loop and its threads.

Under ASGI each synchronous middleware crosses to a thread and back by itself, twice for most: a page that does nothing
took twenty crossings and 3.5 ms. Here a request whose view is synchronous crosses once before its answer, with everything
around the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import HttpRequest, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, resolve

from config.middleware import api_errors, request_id
from config.threads import DOORS


class OneCrossing(ASGIHandler):
    def __init__(self) -> None:
        super().__init__()
        self._crossed, self._knocked = _Crossed(), _Knocked()
        self._crossed.load_middleware()
        self._knocked.load_middleware()
        # They would cross to a thread before each request; `threads.Lane` looks at the connection where it is used.
        for receiver in (reset_queries, close_old_connections):
            request_started.disconnect(receiver)

    def create_request(
        self, scope: Mapping[str, Any], body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponseBase]:
        """Refuse a Content-Type that Django cannot read; it answers such requests with a server error."""
        try:
            return super().create_request(scope, body_file)
        except ValueError:
            return None, HttpResponseBadRequest("400 Bad Request: the Content-Type cannot be read.")

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        if _waits(request):
            return await super().get_response_async(request)
        handler = self._knocked if request.path_info.startswith(DOORS) else self._crossed
        return await sync_to_async(handler.get_response)(request)


class _Crossed(BaseHandler):
    """Everything around a synchronous view, in the thread that runs it."""

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        return request.resolver_match or super().resolve_request(request)


class _Knocked(_Crossed):
    """A platform's update proves itself: it has no cookie, no language and no page, and passes by all that cares for
    these. A hundred come in a second."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware()
        self._view_middleware: list[object] = []
        chain: Any = convert_exception_to_response(self._get_response)  # type: ignore[attr-defined]  # not in its stubs
        for middleware in (api_errors, request_id):
            chain = convert_exception_to_response(middleware(chain))
        self._middleware_chain = chain


def _waits(request: HttpRequest) -> bool:
    """Whether its view is a coroutine: a stream would hold a thread for as long as it lasts."""
    try:
        request.resolver_match = resolve(request.path_info)
    except Resolver404:
        return False
    return iscoroutinefunction(request.resolver_match.func)
