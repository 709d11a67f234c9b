"""Base views of the REST API, shared by every app.

Authentication, throttling and error rendering are configured once, in the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import rate_limits
from config.core.errors import TooManyRequests

F = TypeVar("F", bound=Callable[..., object])


def instantiate_rest_classes(what: str) -> list[Any]:
    """Create the classes that the settings name."""
    return [import_string(name)() for name in settings.REST_CLASSES[what]]


class UncachedApiView(APIView):
    def get_content_negotiator(self) -> BaseContentNegotiation:
        return instantiate_rest_classes("negotiators")[0]  # type: ignore[no-any-return]

    def finalize_response(  # type: ignore[override]
        self, request: Request, response: HttpResponseBase, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        response.headers.setdefault("Cache-Control", "no-store")
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[arg-type]


class UserApiView(UncachedApiView):
    """Base view for signed-in users and their API keys, which need the scope of the operation."""

    write_scopes: ClassVar[tuple[str, ...]]
    keys_may_write: ClassVar[bool] = True
    throttles: ClassVar[str] = "throttles"

    def get_authenticators(self) -> list[BaseAuthentication]:
        return instantiate_rest_classes("authenticators")

    def get_permissions(self) -> list[BasePermission]:
        return instantiate_rest_classes("permissions")

    def get_throttles(self) -> list[BaseThrottle]:
        return instantiate_rest_classes(self.throttles)

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return ("read",) if method in SAFE_METHODS else self.write_scopes

    @property
    def caller(self) -> User:
        user = self.request.user
        assert isinstance(user, User)  # guaranteed by the authentication
        return user


def respond_json(value: object, status: int = 200) -> HttpResponse:
    """Respond with dataclasses as JSON; datetimes end in Z."""
    return HttpResponse(msgspec.json.encode(value), status=status, content_type="application/json")


def respond_no_content() -> HttpResponse:
    return HttpResponse(status=204)


def document_operation(
    summary: str,
    *,
    answers: Mapping[int, object] | Mapping[tuple[int, str], object],
    body: type[BaseModel] | Mapping[str, object] | None = None,
    query: type[BaseModel] | None = None,
    parameters: Sequence[OpenApiParameter] = (),
) -> Callable[[F], F]:
    """Describe one view method for the OpenAPI document; common errors are added to all."""
    shown: list[Any] = (
        [] if query is None else [query]
    )  # drf-spectacular accepts pydantic models like serializers
    return extend_schema(
        summary=summary, request=body, responses=dict(answers), parameters=[*shown, *parameters]
    )


@runtime_checkable
class RequiresScopes(Protocol):
    """A view that declares the scopes it requires of API keys."""

    write_scopes: ClassVar[tuple[str, ...]]
    keys_may_write: ClassVar[bool]

    def scopes_for(self, method: str) -> tuple[str, ...]: ...


class ScopedViewMixin:
    """Declare the scopes required of API keys; cookies have every scope."""

    write_scopes: ClassVar[tuple[str, ...]] = ("chat",)
    keys_may_write: ClassVar[bool] = True

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return ("read",) if method in SAFE_METHODS else self.write_scopes


class AcceptHeaderNegotiation(DefaultContentNegotiation):
    """Negotiate by the Accept header only; `?format=` has no special meaning."""

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:  # noqa: A002
        return list(renderers)


@runtime_checkable
class HasUserRateLimits(Protocol):
    """A view that declares its rate limits for one user."""

    reads_per_minute: ClassVar[int]
    writes_per_minute: ClassVar[int]


class UserThrottle(BaseThrottle):
    """Limit the reads and the changes of one user separately. While Redis is away nothing is refused."""

    counter_name: ClassVar[str]

    def allow_request(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, HasUserRateLimits)
        reads = request.method in SAFE_METHODS
        limit = view.reads_per_minute if reads else view.writes_per_minute
        name = f"{self.counter_name}-{'reads' if reads else 'changes'}"
        wait = rate_limits.count_request(name, f"user:{request.user.pk}", limit=limit, seconds=60)
        if wait is not None:
            raise TooManyRequests("Too many requests. Please slow down.", retry_after_seconds=wait)
        return True


class StaffThrottle(UserThrottle):
    counter_name = "staff"


class BillingThrottle(UserThrottle):
    counter_name = "billing"
