"""Bodies and query strings become typed values here, or a refusal that says where they are wrong (E3, L11)."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from copilot.commands import parse
from copilot.errors import InvalidRequest, TooLarge

BODY_BYTES = 256 * 1024
M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A JSON object: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """A query string: text becomes numbers, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoBody(Body):
    """For doors that take none."""


def body_of(request: Request, model: type[M]) -> M:
    """An absent body is an empty one."""
    content = request._request.body
    if len(content) > BODY_BYTES:
        raise TooLarge(f"A body has at most {BODY_BYTES // 1024} KiB here.")
    if not content:
        return parse(model, {})
    if request.content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(request.content_type)
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return parse(model, value)


def query_of(request: Request, model: type[M]) -> M:
    for name, values in request.query_params.lists():
        if len(values) > 1:
            raise InvalidRequest(f"{name[:100]}: given more than once.")
    return parse(model, {name: values[0] for name, values in request.query_params.lists()})
