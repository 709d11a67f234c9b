"""Base classes of the diagnostics REST views: staff permissions, rate limits and parsing."""

from __future__ import annotations

import ipaddress
from typing import ClassVar, TypeVar

import msgspec
from django.contrib.auth.models import User
from django.http import HttpRequest
from pydantic import BaseModel, ValidationError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from config.core.api.parsing import RequestParser
from config.core.api.views import UserApiView, instantiate_rest_classes
from config.core.errors import Forbidden, InvalidRequest
from config.core.json_values import JSON, list_field_errors
from config.core.staff_permissions import (
    SEE_EMAIL,
    StaffAct,
    can_perform_staff_act,
    explain_second_factor_problem,
    find_second_factor_problem,
    is_login_recent,
)
from diagnostics.audit import RepairActor

M = TypeVar("M", bound=BaseModel)


class DiagnosticsAPIView(UserApiView):
    """Require the diagnostics permission; an API key also needs the scope `staff`, and can only read."""

    http_method_names = ["get", "head"]
    write_scopes = ("staff",)
    keys_may_write = False
    throttles = "staff_throttles"
    reads_per_minute: ClassVar[int] = 120
    writes_per_minute: ClassVar[int] = 20

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return self.write_scopes

    def check_permissions(self, request: Request) -> None:
        super().check_permissions(request)
        act: StaffAct = "diagnostics.read" if request.method in SAFE_METHODS else "diagnostics.repair"
        if not can_perform_staff_act(self.caller, act):
            raise Forbidden("You need staff permission for this.")
        cookie_request = request._request if request.auth is None else None
        if problem := find_second_factor_problem(self.caller, cookie_request):
            raise Forbidden(explain_second_factor_problem(problem), code="second_factor_required")

    @property
    def can_see_email(self) -> bool:
        return self.caller.has_perm(SEE_EMAIL)


def check_staff_rate_limit(request: HttpRequest) -> None:
    """Count a page request against the same limits as REST calls; raise TooManyRequests."""
    for throttle in instantiate_rest_classes(DiagnosticsAPIView.throttles):
        throttle.allow_request(request, DiagnosticsAPIView())


class RepairAPIView(DiagnosticsAPIView):
    """Require the repair permission and a login of today."""

    http_method_names = ["post"]

    def check_permissions(self, request: Request) -> None:
        super().check_permissions(request)
        if not is_login_recent(self.caller, request._request.session):
            raise Forbidden(
                "Please sign in again first.",
                code="login_too_old",
                hint="Sign in again, then repeat the request.",
            )

    def get_actor(self) -> RepairActor:
        return build_actor(self.caller, self.request._request.META.get("REMOTE_ADDR", ""))


def build_actor(user: User, address: str) -> RepairActor:
    try:
        valid = str(ipaddress.ip_address(address))
    except ValueError:
        valid = ""  # a Unix socket has no address
    return RepairActor(name=user.get_username(), admin_id=user.pk, address=valid or None)


class DiagnosticsRequestParser(RequestParser):
    """Name the first wrong parameter apart from the message, because the dashboard marks its filter."""

    def validate(self, model: type[M], data: dict[str, JSON]) -> M:
        try:
            return model.model_validate(data)
        except ValidationError as problem:
            first = list_field_errors(problem)[0]
            field = first.field or "query"
            raise InvalidRequest(f"{field}: {first.message}", field=field) from problem

    def refuse_repeated(self, name: str) -> Exception:
        return InvalidRequest(f"{name}: sent more than once.", field=name)


parse_query = DiagnosticsRequestParser().parse_query


def parse_json_body(request: Request) -> object:
    """Return the decoded body, or None if it is not JSON, which is refused later as not being an object."""
    try:
        return msgspec.json.decode(request._request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
