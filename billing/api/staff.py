"""Somebody's limits, for staff: amounts, and a reset for free (B8.4, B16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field, StringConstraints
from rest_framework.request import Request

from billing import queries, usage
from billing.api.doors import StaffDoor
from billing.api.parsing import Body, Query, body_of, query_of
from billing.errors import InvalidRequest
from billing.queries import StaffLimits
from billing.rest import answer, operation
from config.core.audit import record_audit_event
from config.core.staff_rights import SEE_EMAIL, mask_email

UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Reason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
]


class Whose(Query):
    user: UserId | None = None
    email: Annotated[str, Field(max_length=254, pattern=r"^[^\x00]*$")] | None = None


class StaffReset(Body):
    user: UserId
    reason: Reason
    weekly: bool = False


class BillingStaffLimitsView(StaffDoor):
    act = "limits.read"

    @operation("Somebody's limits", answers={200: StaffLimits}, query=Whose)
    def get(self, request: Request) -> HttpResponse:
        whose = query_of(request, Whose)
        if (whose.user is None) == (whose.email is None):
            raise InvalidRequest({"user": ["Name one user, by id or by e-mail."]})
        user_id = whose.user if whose.user is not None else queries.user_by_email(whose.email or "")
        return answer(_shown(self, user_id))


class BillingStaffResetView(StaffDoor):
    act = "limits.reset"

    @operation("Forgive somebody's use", answers={200: StaffLimits}, body=StaffReset)
    def post(self, request: Request) -> HttpResponse:
        wanted = body_of(request, StaffReset)
        queries.staff_limits(wanted.user)  # there is such a user
        usage.staff_reset(wanted.user, weekly=wanted.weekly, actor_id=self.caller.pk, reason=wanted.reason)
        record_audit_event(
            "usage.reset",
            request=request._request,
            actor=self.caller,
            target=("user", wanted.user),
            reason=wanted.reason,
            weekly=wanted.weekly,
        )
        return answer(_shown(self, wanted.user))


def _shown(door: StaffDoor, user_id: int) -> StaffLimits:
    """As the page shows it: the address only to who may see addresses."""
    limits = queries.staff_limits(user_id)
    return limits if door.caller.has_perm(SEE_EMAIL) else replace(limits, email=mask_email(limits.email))
