"""Build the OpenAPI document: dataclasses become components, and every operation lists the common errors."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import msgspec
from drf_spectacular.drainage import set_override
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import Direction, OpenApiParameter, OpenApiResponse
from rest_framework.permissions import SAFE_METHODS

SchemaFragment = dict[str, Any]  # a piece of the OpenAPI document, as drf-spectacular builds it


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorDetail:
    """The error object of a response; some codes carry further fields."""

    code: str
    message: str
    hint: str = ""
    retry_after_seconds: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Error:
    error: ErrorDetail


REFUSAL_DESCRIPTIONS = {
    400: "The request is malformed; `code` says how.",
    401: "No credentials, or bad ones.",
    402: "Not enough credits, a declined card, or an overdue payment.",
    403: "Not allowed: a missing scope, CSRF, an inactive account, or a tier that the plan does not include.",
    404: "Unknown, deleted or somebody else's.",
    405: "Method not allowed.",
    406: "None of the accepted media types can be served.",
    409: "Wrong state.",
    410: "It was there, and is of no use any more.",
    413: "Too many bytes.",
    415: "This media type is not understood here.",
    429: "Too many requests; see `Retry-After`.",
    502: "The payment service did not do what was asked.",
    503: "Unavailable for a moment; see `Retry-After`.",
    504: "A server went away in the midst: it is not known whether the request was carried out.",
}


def describe_required_scopes(view: object, method: str) -> str:
    """Describe the scopes that a view requires of API keys and bot keys."""
    if not getattr(view, "keys_may_write", True) and method not in SAFE_METHODS:
        return "By a login alone: a key cannot do this."
    asks: Callable[[str], tuple[str, ...]] = getattr(view, "scopes_for", lambda _: ())
    scopes = " and ".join(f"`{scope}`" for scope in asks(method))
    return f"A key needs the scope {scopes}." if scopes else ""


class ApiSchema(AutoSchema):
    """Give every operation a plain id and the common errors."""

    def get_operation_id(self) -> str:
        """Return a stable id: `SessionsView.get` becomes `get_sessions`, whatever its path."""
        name = type(self.view).__name__.removesuffix("View")
        return f"{self.method.lower()}_{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}"

    def get_description(self) -> str:  # type: ignore[override]  # its own base class knows two more
        """Join the docstring of the operation or its view with the required scopes. Docstrings of base classes are left out."""
        act = getattr(self.view, self.method.lower(), None)
        own = getattr(act, "__doc__", None) or vars(type(self.view)).get("__doc__") or ""
        return "\n\n".join(
            part for part in (inspect.cleandoc(own), describe_required_scopes(self.view, self.method)) if part
        )

    def _get_response_bodies(self, direction: Direction = "response") -> SchemaFragment:
        answers: SchemaFragment = super()._get_response_bodies(direction)
        for status, sentence in REFUSAL_DESCRIPTIONS.items():
            refusal = OpenApiResponse(response=Error, description=sentence)
            described = self._get_response_for_code(  # type: ignore[no-untyped-call]
                refusal, str(status), ["application/json"], direction
            )
            answers.setdefault(str(status), described)
        return answers


class DataclassSchemaExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Describe frozen dataclasses, from which responses are encoded."""

    @classmethod
    def _matches(cls, target: object) -> bool:
        return isinstance(target, type) and dataclasses.is_dataclass(target)

    def get_name(self, auto_schema: AutoSchema, direction: Direction) -> str:
        set_override(
            self.target, "suppress_collision_warning", True
        )  # the same shape may also occur inside others, by name
        return str(self.target.__name__)

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> SchemaFragment:
        _, parts = msgspec.json.schema_components(
            [self.target], schema_hook=_describe_any_json, ref_template="#/components/schemas/{name}"
        )
        described: SchemaFragment = parts.pop(self.target.__name__)
        for name, part in parts.items():
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, object=name, schema=part
            )
            auto_schema.registry.register_on_missing(component)
        return described


def _describe_any_json(kind: type) -> SchemaFragment:
    """Describe values of any JSON type."""
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError


IDEMPOTENCY_KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same as `run_id` in the body: sending again returns the first outcome.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
MULTIPART_FILES_SCHEMA: SchemaFragment = {
    "multipart/form-data": {
        "type": "object",
        "properties": {
            "files": {"type": "array", "maxItems": 20, "items": {"type": "string", "format": "binary"}},
            "session": {"type": "string", "format": "uuid"},
        },
        "required": ["files"],
        "additionalProperties": False,
    }
}
LAST_EVENT_ID_HEADER = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The cursor of the last event received; goes before `cursor`.",
)
