"""Bodies and query strings become typed values here, or a refusal that says where they are wrong (E3)."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict
from rest_framework.request import Request

from copilot.api.errors import UnsupportedMediaType
from copilot.commands import clean_text, parse
from copilot.errors import InvalidRequest
from copilot.events import JSON

Clean = Annotated[str, AfterValidator(clean_text)]  # storable: no NUL, no lone surrogates, no server tags


class Body(BaseModel):
    """A JSON object: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """A query string: text becomes numbers, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Query):
    """For doors that take none."""


M = TypeVar("M", bound=BaseModel)


def body_of(request: Request, model: type[M]) -> M:
    return parse(model, fields_of(request))


def query_of(request: Request, model: type[M]) -> M:
    for name, values in request.query_params.lists():
        if len(values) > 1:
            raise InvalidRequest(f"{name[:100]}: given more than once.")
    return parse(model, {name: values[0] for name, values in request.query_params.lists()})


def fields_of(request: Request) -> dict[str, JSON]:
    """The request's JSON object; an absent body is an empty one."""
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
