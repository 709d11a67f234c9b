"""Parse REST bodies and query strings into pydantic models; errors name the wrong field.

Every app declares its bodies as `RequestBody` and its query strings as `QueryParams`, and reads them with `parse_body`
and `parse_query`. The OpenAPI schema is made from the same models. An app whose errors have another form overrides the
refusals of `RequestParser` and nothing else.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict
from rest_framework.request import Request

from config.core.api.errors import UnsupportedMediaType
from config.core.errors import InvalidRequest
from config.core.json_values import JSON, StrictModel, validate_body


class RequestBody(StrictModel):
    """A JSON object with exact types and no unknown keys."""


class QueryParams(BaseModel):
    """A query string: text is converted to numbers and dates, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=BaseModel)


class RequestParser:
    syntax_message: ClassVar[str] = "The body is not valid JSON."
    not_an_object_message: ClassVar[str] = "The body must be a JSON object."

    def parse_body(self, request: Request, model: type[M]) -> M:
        return self.validate(model, self.parse_json_object(request))

    def parse_query(self, request: Request, model: type[M]) -> M:
        for name, values in request.query_params.lists():
            if len(values) > 1:
                raise self.refuse_repeated(name[:100])
        return self.validate(model, {name: values[0] for name, values in request.query_params.lists()})

    def parse_json_object(self, request: Request) -> dict[str, JSON]:
        """Return the request's JSON object; a missing body counts as an empty one."""
        content = request._request.body
        if not content:
            return {}
        if request.content_type.partition(";")[0].strip().lower() != "application/json":
            raise self.refuse_media_type(request.content_type)
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self.refuse_body(self.syntax_message) from None
        if not isinstance(value, dict):
            raise self.refuse_body(self.not_an_object_message)
        return value

    def validate(self, model: type[M], data: dict[str, JSON]) -> M:
        return validate_body(model, data)

    def refuse_body(self, message: str) -> Exception:
        return InvalidRequest(message)

    def refuse_repeated(self, name: str) -> Exception:
        return InvalidRequest(f"{name}: given more than once.")

    def refuse_media_type(self, content_type: str) -> Exception:
        return UnsupportedMediaType("Send the body as application/json.")


_parser = RequestParser()
parse_body = _parser.parse_body
parse_query = _parser.parse_query
parse_json_object = _parser.parse_json_object
