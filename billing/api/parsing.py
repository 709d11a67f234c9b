"""Bodies, query strings and keys become typed values, or a refusal that names the field (B16.3)."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel, ConfigDict, ValidationError
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from billing.errors import InvalidRequest

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Sending again returns the first outcome.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A JSON object: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """A query string: text becomes numbers and dates, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoBody(Body):
    """For doors that take none."""


def body_of(request: Request, model: type[M]) -> M:
    """An absent body is an empty one."""
    content = request._request.body
    if not content:
        return _checked(model, {})
    if request.content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(request.content_type)
    try:
        fields = msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest({"body": ["It is not a JSON object."]}) from None
    return _checked(model, fields)


def query_of(request: Request, model: type[M]) -> M:
    for name, values in request.query_params.lists():
        if len(values) > 1:
            raise InvalidRequest({name[:100]: ["Given more than once."]})
    return _checked(model, {name: values[0] for name, values in request.query_params.lists()})


def key_of(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest({"Idempotency-Key": ["1 to 128 letters, digits and _ . : - are a key."]})
    return key


def _checked(model: type[M], fields: dict[str, object]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as problem:
        errors: dict[str, list[str]] = {}
        for one in problem.errors(include_url=False, include_input=False, include_context=False):
            errors.setdefault(".".join(str(part) for part in one["loc"])[:100] or "body", []).append(
                one["msg"]
            )
        raise InvalidRequest(errors) from problem
