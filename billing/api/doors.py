"""What billing's REST views share. Who may enter and how refusals look is said once, in the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

F = TypeVar("F", bound=Callable[..., object])


def _made(what: str) -> list[Any]:
    return [import_string(name)() for name in settings.REST_DOORS[what]]


class Door(APIView):
    """A view for a known caller; keys need the scope of what they do (A20.6)."""

    http_method_names = ["get", "head", "post", "put"]
    write_scopes: ClassVar[tuple[str, ...]] = ("billing",)
    keys_may_write: ClassVar[bool] = True
    reads_per_minute: ClassVar[int] = 60  # of one user, over all of billing's doors (B16.4)
    writes_per_minute: ClassVar[int] = 10

    def get_authenticators(self) -> list[BaseAuthentication]:
        return _made("authenticators")

    def get_permissions(self) -> list[BasePermission]:
        return _made("permissions")

    def get_throttles(self) -> list[BaseThrottle]:
        return _made("billing_throttles")

    def get_content_negotiator(self) -> BaseContentNegotiation:
        return _made("negotiators")[0]  # type: ignore[no-any-return]

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return ("read",) if method in SAFE_METHODS else self.write_scopes

    @property
    def caller(self) -> User:
        user = self.request.user
        assert isinstance(user, User)  # nobody else was let in
        return user

    def finalize_response(  # type: ignore[override]
        self, request: Request, response: HttpResponseBase, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        response["Cache-Control"] = "no-store"  # money is shown as it is now
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[arg-type]


class StaffDoor(Door):
    """For staff alone; a key needs the scope besides, and only reads (A20.6)."""

    write_scopes = ("staff",)
    keys_may_write = False

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return self.write_scopes

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if not self.caller.is_staff:
            raise PermissionDenied


def answer(value: object, status: int = 200) -> HttpResponse:
    """A dataclass as JSON; instants end in Z."""
    return HttpResponse(msgspec.json.encode(value), status=status, content_type="application/json")


def nothing() -> HttpResponse:
    return HttpResponse(status=204)


def operation(
    summary: str,
    *,
    answers: Mapping[int, object] | Mapping[tuple[int, str], object],
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    parameters: tuple[OpenApiParameter, ...] = (),
) -> Callable[[F], F]:
    """Describe one method of a view for the OpenAPI document."""
    shown: list[object] = [] if query is None else [query]
    return extend_schema(
        summary=summary,
        request=body,
        responses=dict(answers),
        parameters=[*shown, *parameters],  # type: ignore[list-item]
    )


def array_of(shape: type) -> dict[str, Any]:
    """A list of one of our dataclasses, described in place."""
    _, parts = msgspec.json.schema_components([shape])
    return {"type": "array", "items": parts[shape.__name__]}
