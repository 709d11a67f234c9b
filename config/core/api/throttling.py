from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import rate_limits
from config.core.errors import TooManyRequests


@runtime_checkable
class HasUserRateLimits(Protocol):
    """A view that says how often one user may read and change."""

    reads_per_minute: ClassVar[int]
    writes_per_minute: ClassVar[int]


class UserThrottle(BaseThrottle):
    """Reads and changes are counted apart, whatever the way in; it fails open with Redis."""

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
    """Of diagnostics."""

    counter_name = "staff"


class BillingThrottle(UserThrottle):
    """Of billing."""

    counter_name = "billing"
