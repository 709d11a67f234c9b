"""Authenticate callers of the OpenAI-compatible API, parse their bodies, list models, and render answers and streams."""

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

from billing.selectors import plan_status
from config.core import rate_limits
from config.core.db import run_in_thread
from config.core.errors import Forbidden, InvalidRequest, NotFound, RequestRefused, TooManyRequests
from config.core.json_values import validate_body
from copilot.accounts import api_keys
from copilot.openai_compat.errors import (
    HANDLED_EXCEPTIONS,
    CompatMethodNotAllowed,
    InvalidApiKey,
    ModelNotFound,
    build_error_envelope,
    render_refusal,
    to_refusal,
)
from copilot.providers import catalogue
from copilot.realtime.connections import ConnectionCredential, OpenConnection, open_connection
from copilot.realtime.fanout import FeedRevoked

CALLS_PER_MINUTE = 600  # shared with REST: one key, one limit


@dataclass(frozen=True)
class ApiCaller:
    user_id: int
    scopes: frozenset[str]
    connection: OpenConnection | None = None  # set for endpoints whose answers take as long as a turn


EndpointHandler = Callable[..., Coroutine[object, object, HttpResponseBase]]


class LenientModel(BaseModel):
    """A body in another vendor's format: types are strict, unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


M = TypeVar("M", bound=BaseModel)


def build_view(*, is_stream: bool = False, **methods: EndpointHandler) -> EndpointHandler:
    """Build a view for an authenticated caller: `build_view(GET=…, POST=…)`.

    Answers of a stream take as long as a turn: each counts as one of the account's streams, and ends with the key.
    """

    async def view(request: HttpRequest, **kwargs: object) -> HttpResponseBase:
        try:
            handler = methods.get(request.method or "")
            caller = await run_in_thread(
                _authenticate_caller, request, is_stream=is_stream and handler is not None
            )
            if handler is None:
                raise CompatMethodNotAllowed("This method is not allowed for this URL.")
            return await _run_handler(handler, request, caller, **kwargs)
        except FeedRevoked:
            return render_refusal(InvalidApiKey())
        except HANDLED_EXCEPTIONS as problem:
            return render_refusal(to_refusal(problem))

    return csrf_exempt(wraps(next(iter(methods.values())))(view))


async def _run_handler(
    handler: EndpointHandler, request: HttpRequest, caller: ApiCaller, **kwargs: object
) -> HttpResponseBase:
    if caller.connection is None:
        return await handler(request, caller, **kwargs)
    with ExitStack() as stack:
        stack.callback(caller.connection.close)
        response = await handler(request, caller, **kwargs)
        caller.connection.close_with(response)
        stack.pop_all()
    return response


def _authenticate_caller(request: HttpRequest, *, is_stream: bool) -> ApiCaller:
    authorization, method = request.headers.get("Authorization", ""), request.method or ""
    scheme, _, token = authorization.partition(" ")
    key = api_keys.verify_api_key(token.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise InvalidApiKey
    if not key.user.is_active:
        raise Forbidden("This account is not active.", code="account_inactive")
    scope = "read" if method in ("GET", "HEAD") else "chat"
    if scope not in key.scopes:
        raise Forbidden(f"This API key needs the {scope} scope.", code="insufficient_scope", scope=scope)
    retry_after_seconds = rate_limits.count_request(
        "api", f"key:{key.prefix}", limit=CALLS_PER_MINUTE, seconds=60
    )
    if retry_after_seconds is not None:
        raise TooManyRequests("Too many requests. Please slow down.", retry_after_seconds=retry_after_seconds)
    scopes = frozenset(key.scopes)
    if not is_stream:
        return ApiCaller(key.user_id, scopes)
    credential = ConnectionCredential(key.user_id, key_id=key.pk)
    address = str(request.META.get("REMOTE_ADDR", ""))
    return ApiCaller(key.user_id, scopes, open_connection("streams", credential, address))


def parse_body(request: HttpRequest, model: type[M]) -> M:
    try:
        # Not `request.body`, which has a lower limit: whole conversations are longer than forms.
        value = msgspec.json.decode(request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    return validate_body(model, value)


def render_json(value: object) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), content_type="application/json")


def encode_error_frame(refusal: RequestRefused) -> bytes:
    return encode_frame(build_error_envelope(refusal))


async def render_event_stream(
    frames: AsyncGenerator[bytes, None],
    *,
    encode_error: Callable[[RequestRefused], bytes] = encode_error_frame,
) -> StreamingHttpResponse:
    """Stream server-sent events.

    Errors before the first frame become a status code; later ones become a frame of `encode_error`.
    """
    first = await anext(frames)
    response = StreamingHttpResponse(
        _prepend_frame(first, frames, encode_error), content_type="text/event-stream"
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _prepend_frame(
    first: bytes, frames: AsyncGenerator[bytes, None], encode_error: Callable[[RequestRefused], bytes]
) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield first
        try:
            async for frame in frames:
                yield frame
        except FeedRevoked:
            yield encode_error(InvalidApiKey())
        except HANDLED_EXCEPTIONS as problem:
            yield encode_error(to_refusal(problem))  # the status is already sent


def encode_frame(value: object, *, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


async def _raise_not_found(request: HttpRequest, caller: ApiCaller) -> HttpResponse:
    raise NotFound


not_found_view = build_view(
    GET=_raise_not_found,
    HEAD=_raise_not_found,
    POST=_raise_not_found,
    PUT=_raise_not_found,
    PATCH=_raise_not_found,
    DELETE=_raise_not_found,
)


MODEL_OWNER = "pilothouse"


def resolve_tier(model: str) -> str:
    """Return the tier that a model name stands for. Admission decides later whether the caller's plan includes it."""
    tiers = catalogue.get_tier_entries()
    if model in tiers:
        return model
    for tier, entry in tiers.items():
        if model in (entry.name, entry.model):
            return tier
    raise ModelNotFound(
        f"The model {model[:100]!r} does not exist.", hint="GET /v1/models lists the models.", param="model"
    )


def _list_model_names(user_id: int) -> list[str]:
    """Put tiers first: their names stay the same when the models behind them change."""
    plan = plan_status.get_plan_terms(user_id)
    allowed = {
        tier: entry
        for tier, entry in catalogue.get_tier_entries().items()
        if not plan.model_tiers or tier in plan.model_tiers
    }
    return list(dict.fromkeys([*allowed, *(entry.model for entry in allowed.values())]))


def _serialize_model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": MODEL_OWNER}


async def list_models(request: HttpRequest, caller: ApiCaller) -> HttpResponse:
    names = await run_in_thread(_list_model_names, caller.user_id)
    return render_json({"object": "list", "data": [_serialize_model(name) for name in names]})


async def retrieve_model(request: HttpRequest, caller: ApiCaller, model: str) -> HttpResponse:
    if model not in await run_in_thread(_list_model_names, caller.user_id):
        raise ModelNotFound(f"The model {model[:100]!r} does not exist.", param="model")
    return render_json(_serialize_model(model))


models_view = build_view(GET=list_models)
model_view = build_view(GET=retrieve_model)
