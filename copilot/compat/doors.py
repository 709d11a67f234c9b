"""What the compatible doors share: a bearer key with its scope and its count, a JSON body, refusals (A20.6, E4.2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

import msgspec
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from pydantic import BaseModel, ConfigDict

from copilot import api_keys
from copilot.bridge import in_thread
from copilot.commands import parse
from copilot.compat.errors import NAMED, MethodNotAllowed, Unauthenticated, envelope, refusal_for, respond
from copilot.connections import Connection, Credential, open_connection
from copilot.errors import Forbidden, InvalidRequest, NotFound, Refused, TooMany
from copilot.live import counters
from copilot.readers import Revoked

CALLS_PER_MINUTE = 600  # the same count as REST's: one key, one allowance (L10)


@dataclass(frozen=True)
class Caller:
    user_id: int
    scopes: frozenset[str]
    connection: Connection | None = None  # of a door whose answers take as long as a turn


Handler = Callable[..., Coroutine[object, object, HttpResponseBase]]


class Lenient(BaseModel):
    """A body of another vendor's form: exact types; what only tunes a model is passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


M = TypeVar("M", bound=BaseModel)


def door(*, is_stream: bool = False, **methods: Handler) -> Handler:
    """A view that answers these methods for a known caller: `door(GET=…, POST=…)`.

    The answers of a stream take as long as a turn: each counts among the account's streams, and ends with the key.
    """

    async def view(request: HttpRequest, **kwargs: object) -> HttpResponseBase:
        try:
            handler = methods.get(request.method or "")
            caller = await in_thread(_admit, request, is_stream=is_stream and handler is not None)
            if handler is None:
                raise MethodNotAllowed("This method is not allowed here.")
            return await _answered(handler, request, caller, **kwargs)
        except Revoked:
            return respond(Unauthenticated())
        except NAMED as problem:
            return respond(refusal_for(problem))

    return csrf_exempt(wraps(next(iter(methods.values())))(view))


async def _answered(
    handler: Handler, request: HttpRequest, caller: Caller, **kwargs: object
) -> HttpResponseBase:
    if caller.connection is None:
        return await handler(request, caller, **kwargs)
    with ExitStack() as stack:
        stack.callback(caller.connection.close)
        response = await handler(request, caller, **kwargs)
        caller.connection.close_with(response)
        stack.pop_all()
    return response


def _admit(request: HttpRequest, *, is_stream: bool) -> Caller:
    authorization, method = request.headers.get("Authorization", ""), request.method or ""
    scheme, _, token = authorization.partition(" ")
    key = api_keys.verify(token.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise Unauthenticated
    if not key.user.is_active:
        raise Forbidden("This account is not active.", code="account_inactive")
    scope = "read" if method in ("GET", "HEAD") else "chat"
    if scope not in key.scopes:
        raise Forbidden(f"The key lacks the scope {scope}.", code="insufficient_scope", scope=scope)
    wait = counters.hit("api", f"key:{key.prefix}", limit=CALLS_PER_MINUTE, seconds=60)
    if wait is not None:
        raise TooMany("Too many requests. Please slow down.", retry_after_seconds=wait)
    scopes = frozenset(key.scopes)
    if not is_stream:
        return Caller(key.user_id, scopes)
    credential = Credential(key.user_id, key_id=key.pk)
    address = str(request.META.get("REMOTE_ADDR", ""))
    return Caller(key.user_id, scopes, open_connection("streams", credential, address))


def body_of(request: HttpRequest, model: type[M]) -> M:
    try:
        value = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    return parse(model, value)


def answer(value: object) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), content_type="application/json")


def in_envelope(refusal: Refused) -> bytes:
    return frame_of(envelope(refusal))


async def streamed(
    frames: AsyncGenerator[bytes, None], *, tell: Callable[[Refused], bytes] = in_envelope
) -> StreamingHttpResponse:
    """Server-sent events; whatever refuses the request does so before the first of them, and later is told in one."""
    first = await anext(frames)
    response = StreamingHttpResponse(_whole(first, frames, tell), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _whole(
    first: bytes, frames: AsyncGenerator[bytes, None], tell: Callable[[Refused], bytes]
) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield first
        try:
            async for frame in frames:
                yield frame
        except Revoked:
            yield tell(Unauthenticated())
        except NAMED as problem:
            yield tell(refusal_for(problem))  # there is no status left to tell it


def frame_of(value: object, *, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


async def _unknown(request: HttpRequest, caller: Caller) -> HttpResponse:
    raise NotFound


nowhere = door(GET=_unknown, HEAD=_unknown, POST=_unknown, PUT=_unknown, PATCH=_unknown, DELETE=_unknown)
