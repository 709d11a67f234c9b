"""Bodies and query strings become typed values here, or a refusal that says where they are wrong."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from config.core.errors import InvalidRequest, PayloadTooLarge
from config.core.validation import validate_body

MAX_REQUEST_BODY_BYTES = 256 * 1024
M = TypeVar("M", bound=BaseModel)


class RequestBody(BaseModel):
    """A JSON object: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryParams(BaseModel):
    """A query string: text becomes numbers, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoBody(RequestBody):
    """For doors that take none."""


def parse_body(request: Request, model: type[M]) -> M:
    """An absent body is an empty one."""
    content = request._request.body
    if len(content) > MAX_REQUEST_BODY_BYTES:
        raise PayloadTooLarge(f"A body has at most {MAX_REQUEST_BODY_BYTES // 1024} KiB here.")
    if not content:
        return validate_body(model, {})
    if request.content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(request.content_type)
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return validate_body(model, value)


def parse_query(request: Request, model: type[M]) -> M:
    for name, values in request.query_params.lists():
        if len(values) > 1:
            raise InvalidRequest(f"{name[:100]}: given more than once.")
    return validate_body(model, {name: values[0] for name, values in request.query_params.lists()})
