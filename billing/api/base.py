"""Parse billing's REST requests into typed values, and the base views with their permissions."""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel, ValidationError
from rest_framework.exceptions import PermissionDenied, UnsupportedMediaType
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from billing.errors import InvalidRequest
from config.core.api.parsing import RequestBody, RequestParser
from config.core.api.views import UserApiView
from config.core.json_values import JSON, list_field_errors
from config.core.staff_permissions import (
    StaffAct,
    can_perform_staff_act,
    explain_second_factor_problem,
    find_second_factor_problem,
    is_login_recent,
)

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Sending again returns the first outcome.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
_KEY_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
M = TypeVar("M", bound=BaseModel)


class EmptyBody(RequestBody):
    """For operations that take no body."""


class BillingRequestParser(RequestParser):
    """List the errors of each field, because pages show them beside it."""

    syntax_message = RequestParser.not_an_object_message

    def validate(self, model: type[M], data: dict[str, JSON]) -> M:
        try:
            return model.model_validate(data)
        except ValidationError as problem:
            errors: dict[str, list[str]] = {}
            for error in list_field_errors(problem):
                errors.setdefault(error.field or "body", []).append(error.message)
            raise InvalidRequest(errors) from problem

    def refuse_body(self, message: str) -> Exception:
        return InvalidRequest({"body": [message]})

    def refuse_repeated(self, name: str) -> Exception:
        return InvalidRequest({name: ["Use this parameter only once."]})

    def refuse_media_type(self, content_type: str) -> Exception:
        return UnsupportedMediaType(content_type)


_parser = BillingRequestParser()
parse_body = _parser.parse_body
parse_query = _parser.parse_query


def get_idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY_PATTERN.fullmatch(key):
        raise InvalidRequest({"Idempotency-Key": ["Use 1 to 128 letters, digits or the characters _ . : -"]})
    return key


# --- Views ---


class BillingApiView(UserApiView):
    http_method_names = ["get", "head", "post", "put"]
    write_scopes = ("billing",)
    throttles = "billing_throttles"
    reads_per_minute: ClassVar[int] = 60  # per user, over all billing views together
    writes_per_minute: ClassVar[int] = 10


class BillingStaffApiView(BillingApiView):
    """Require the staff permission `act` and a second factor. API keys need the staff scope and may only read;
    changes need a recent login.
    """

    act: ClassVar[StaffAct]
    write_scopes = ("staff",)
    keys_may_write = False

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return self.write_scopes

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if not can_perform_staff_act(self.caller, self.act):
            raise PermissionDenied("You don't have permission to do this.")
        by_cookie = request._request if request.auth is None else None
        if problem := find_second_factor_problem(self.caller, by_cookie):
            raise PermissionDenied(explain_second_factor_problem(problem), code="second_factor_required")
        if request.method not in SAFE_METHODS and not is_login_recent(self.caller, request._request.session):
            raise PermissionDenied(
                "Your sign-in is too old for this. Sign in again and retry.", code="login_too_old"
            )


def build_array_schema(shape: type) -> dict[str, Any]:
    """Describe a list of one of our dataclasses inline."""
    _, parts = msgspec.json.schema_components([shape])
    return {"type": "array", "items": parts[shape.__name__]}
