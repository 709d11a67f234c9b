"""Parse REST bodies and query strings into typed values; errors name the wrong field."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict
from rest_framework.request import Request

from config.core.api.errors import UnsupportedMediaType
from config.core.errors import InvalidRequest
from config.core.json_values import JSON
from config.core.validation import validate_body


class RequestBody(BaseModel):
    """A JSON object with exact types and no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryParams(BaseModel):
    """A query string: text is converted to numbers, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EmptyQueryParams(QueryParams):
    """For operations that take no query."""


M = TypeVar("M", bound=BaseModel)


def parse_body(request: Request, model: type[M]) -> M:
    return validate_body(model, parse_json_object(request))


def parse_query(request: Request, model: type[M]) -> M:
    for name, values in request.query_params.lists():
        if len(values) > 1:
            raise InvalidRequest(f"{name[:100]}: given more than once.")
    return validate_body(model, {name: values[0] for name, values in request.query_params.lists()})


def parse_json_object(request: Request) -> dict[str, JSON]:
    """Return the request's JSON object; a missing body counts as an empty one."""
    content = request._request.body
    if not content:
        return {}
    if request.content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType("Send the body as application/json.")
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value
