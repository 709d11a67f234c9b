"""Somebody's limits: looked up, and forgiven by billing's own function, with a reason (D20)."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from billing import queries as billing
from billing import usage
from billing.errors import UnknownUser
from config.core.staff_rights import can_perform, mask_email
from diagnostics import audit
from diagnostics.audit import Entry, Outcome
from diagnostics.dashboard.staffing import actor, person, sees_email, show, staff_only, url_of
from diagnostics.dashboard.tabs import BY_SLUG, Tab
from diagnostics.lists import is_id

Context = dict[str, object]
SHORTEST_REASON, LONGEST_REASON = 3, 500


def look(request: HttpRequest, tab: Tab) -> Context:
    """By id or by e-mail, one of them; without either the tab only asks whose."""
    user, email = (request.GET.get(name, "").strip() for name in ("user", "email"))
    asked: Context = {
        "asked": {"user": user, "email": email},
        "may_reset": can_perform(person(request), "limits.reset"),
    }
    if not request.GET:
        return asked
    if bool(user) == bool(email):
        return {**asked, "problem": "Name one user: by id, or by e-mail.", "status": 400}
    if "\x00" in email:
        return {**asked, "problem": "email: not an address.", "status": 400}
    if user and not is_id(user):
        return {**asked, "problem": "user: a number.", "status": 400}
    try:
        user_id = int(user) if user else billing.user_by_email(email)
        return {**asked, **found(request, user_id)}
    except UnknownUser:
        return {**asked, "problem": "There is no such user (unknown_user).", "status": 404}


def found(request: HttpRequest, user_id: int) -> Context:
    limits, view = billing.staff_limits(user_id), billing.usage(user_id)
    holds = billing.open_holds(user_id)
    return {
        "limits": limits if sees_email(request) else replace(limits, email=mask_email(limits.email)),
        "may_see_users": person(request).has_perm("auth.view_user"),
        "windows": [
            {
                "name": name,
                "used": getattr(limits, f"{key}_used_microdollars"),
                "limit": getattr(limits, f"{key}_limit_microdollars"),
                "source": "override"
                if getattr(limits, f"{key}_override_microdollars") is not None
                else "tier",
                "percent": window.percent_used if window else None,
                "resets_at": window.resets_at if window else None,
            }
            for name, key, window in (("Today", "daily", view.daily), ("This week", "weekly", view.weekly))
        ],
        "holds": holds,
        "held": sum(hold.microdollars for hold in holds) if holds else 0,
        "records": billing.recent_use(user_id),
    }


# --- forgiving ---------------------------------------------------------------------------------------


@staff_only("limits.reset")
@require_POST
def confirm_reset(request: HttpRequest) -> HttpResponse:
    return _ask(request, _whose(request))


@staff_only("limits.reset")
@require_POST
def apply_reset(request: HttpRequest) -> HttpResponse:
    user_id, weekly = _whose(request), _weekly(request)
    reason = request.POST.get("reason", "").strip()
    if not SHORTEST_REASON <= len(reason) <= LONGEST_REASON or "\x00" in reason:
        return _ask(
            request, user_id, refusal=f"The reason has {SHORTEST_REASON} to {LONGEST_REASON} characters."
        )
    began, before = time.monotonic(), billing.staff_limits(user_id)
    told = usage.staff_reset(user_id, weekly=weekly, actor_id=person(request).pk, reason=reason)
    after = billing.staff_limits(user_id)
    entry = Entry(
        action="reset_usage",
        outcome=Outcome.DONE,
        reason=reason,
        filter={"user": user_id, "weekly": weekly},
        result={"before": _used(before), "after": _used(after), "redis": "told" if told else "away"},
        duration_ms=round((time.monotonic() - began) * 1000),
    )
    recorded = audit.record(actor(request), entry)
    return show(
        request,
        BY_SLUG["limits"],
        "_reset_result.html",
        {
            "told": told,
            "audit_id": recorded.pk,
            "user_id": user_id,
            "back": _back(user_id),
            **found(request, user_id),
        },
    )


def _ask(request: HttpRequest, user_id: int, *, refusal: str = "") -> HttpResponse:
    context = {
        **found(request, user_id),
        "weekly": _weekly(request),
        "refusal": refusal,
        "reason": request.POST.get("reason", ""),
        "back": _back(user_id),
    }
    return show(request, BY_SLUG["limits"], "_reset_confirm.html", context)


def _whose(request: HttpRequest) -> int:
    text = request.POST.get("user", "")
    if not (is_id(text) and User.objects.filter(pk=int(text)).exists()):
        raise Http404("unknown_user")
    return int(text)


def _weekly(request: HttpRequest) -> bool:
    return request.POST.get("weekly") == "yes"


def _used(limits: billing.StaffLimits) -> dict[str, int]:
    return {
        name: amount
        for name, amount in asdict(limits).items()
        if name in ("daily_used_microdollars", "weekly_used_microdollars")
    }


def _back(user_id: int) -> str:
    return f"{url_of('limits')}?user={user_id}"
