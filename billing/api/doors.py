"""What billing's REST views share: the count of requests is of all its doors together."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from billing.rest import PersonsDoor
from config.core.staff_access import explain_problem, second_factor_problem
from config.core.staff_rights import StaffAct, can_perform, is_login_recent


class Door(PersonsDoor):
    http_method_names = ["get", "head", "post", "put"]
    write_scopes = ("billing",)
    throttles = "billing_throttles"
    reads_per_minute: ClassVar[int] = 60  # of one user, over all of billing's doors (B16.4)
    writes_per_minute: ClassVar[int] = 10


class StaffDoor(Door):
    """For staff with the rights of `act`; a key needs the scope besides, and only reads (A20.6). Whoever changes something signed in today."""

    act: ClassVar[StaffAct]
    write_scopes = ("staff",)
    keys_may_write = False

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return self.write_scopes

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if not can_perform(self.caller, self.act):
            raise PermissionDenied("This is for staff with the right to it.")
        by_cookie = request._request if request.auth is None else None
        if problem := second_factor_problem(self.caller, by_cookie):
            raise PermissionDenied(explain_problem(problem), code="second_factor_required")
        if request.method not in SAFE_METHODS and not is_login_recent(self.caller, request._request.session):
            raise PermissionDenied(
                "Your login is too old for this. Sign in again, then repeat it.", code="login_too_old"
            )


def array_of(shape: type) -> dict[str, Any]:
    """A list of one of our dataclasses, described in place."""
    _, parts = msgspec.json.schema_components([shape])
    return {"type": "array", "items": parts[shape.__name__]}
