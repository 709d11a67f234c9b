"""Demand a second factor of staff before they reach pages and calls that are for staff alone (`STAFF_MFA`)."""

from __future__ import annotations

from typing import Literal

from allauth.account.authentication import get_authentication_records
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest

Problem = Literal["", "no_factor", "factor_not_used"]


def second_factor_problem(user: User | AnonymousUser, request: HttpRequest | None) -> Problem:
    """Say what is missing. Without a request (an API key) it is enough that the account has a factor."""
    if settings.STAFF_MFA != "required" or not isinstance(user, User):
        return ""
    if not is_mfa_enabled(user):
        return "no_factor"
    if request is not None and not any(
        record.get("method") == "mfa" for record in get_authentication_records(request, user)
    ):
        return "factor_not_used"
    return ""


def explain_problem(problem: Problem) -> str:
    if problem == "no_factor":
        return "Staff need a second factor. Add a passkey or an authenticator app to your account first."
    return "Staff need a second factor. Sign in on the web with yours first."
