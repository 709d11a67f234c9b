"""Dashboard tab that shows a user's limits, and resets their usage with a reason."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from billing.errors import UnknownUser
from billing.selectors import usage_status
from billing.usage import resets
from config.core.staff_permissions import can_perform_staff_act, mask_email
from diagnostics import audit
from diagnostics.audit import AuditOutcome, RepairRecord
from diagnostics.dashboard.decorators import (
    can_see_email,
    get_actor,
    get_staff_user,
    get_tab_url,
    render_tab,
    staff_only,
)
from diagnostics.dashboard.forms import ResetConfirmationForm, ResetTargetForm, UserLookupForm
from diagnostics.dashboard.tabs import TAB_BY_SLUG, Tab

TabContext = dict[str, object]


def build_limits_context(request: HttpRequest, tab: Tab) -> TabContext:
    """Look a user up by id or email; without either, the tab only shows the form."""
    form = UserLookupForm(request.GET or None)
    context: TabContext = {
        "form": form,
        "may_reset": can_perform_staff_act(get_staff_user(request), "limits.reset"),
    }
    if form.is_valid():
        try:
            user, email = form.cleaned_data["user"], form.cleaned_data["email"]
            user_id = int(user) if user else usage_status.find_user_id_by_email(email)
            context |= load_user_limits(request, user_id)
        except UnknownUser:
            form.add_unknown_user()
    return {**context, "status": form.status}


def load_user_limits(request: HttpRequest, user_id: int) -> TabContext:
    limits, view = usage_status.get_staff_limits(user_id), usage_status.get_usage(user_id)
    holds = usage_status.list_open_holds(user_id)
    return {
        "limits": limits if can_see_email(request) else replace(limits, email=mask_email(limits.email)),
        "may_see_users": get_staff_user(request).has_perm("auth.view_user"),
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
        "records": usage_status.list_recent_calls(user_id),
    }


# --- Resetting usage ---


@staff_only("limits.reset")
@require_POST
def confirm_reset(request: HttpRequest) -> HttpResponse:
    return _render_confirmation(request, ResetTargetForm.from_request(request), ResetConfirmationForm())


@staff_only("limits.reset")
@require_POST
def apply_reset(request: HttpRequest) -> HttpResponse:
    target, form = ResetTargetForm.from_request(request), ResetConfirmationForm.from_request(request)
    user_id = target.get_user_id()
    if not form.is_valid():
        return _render_confirmation(request, target, form)
    weekly, reason = target.is_weekly, form.cleaned_data["reason"]
    started, before = time.monotonic(), usage_status.get_staff_limits(user_id)
    told = resets.reset_usage_as_staff(
        user_id, weekly=weekly, actor_id=get_staff_user(request).pk, reason=reason
    )
    after = usage_status.get_staff_limits(user_id)
    entry = RepairRecord(
        action="reset_usage",
        outcome=AuditOutcome.DONE,
        reason=reason,
        filter={"user": user_id, "weekly": weekly},
        result={
            "before": _get_usage(before),
            "after": _get_usage(after),
            "redis": "told" if told else "away",
        },
        duration_ms=round((time.monotonic() - started) * 1000),
    )
    recorded = audit.record_repair(get_actor(request), entry)
    return render_tab(
        request,
        TAB_BY_SLUG["limits"],
        "_reset_result.html",
        {
            "told": told,
            "audit_id": recorded.pk,
            "user_id": user_id,
            "back": _get_back_url(user_id),
            **load_user_limits(request, user_id),
        },
    )


def _render_confirmation(
    request: HttpRequest, target: ResetTargetForm, form: ResetConfirmationForm
) -> HttpResponse:
    user_id = target.get_user_id()
    context = {
        **load_user_limits(request, user_id),
        "weekly": target.is_weekly,
        "form": form,
        "back": _get_back_url(user_id),
    }
    return render_tab(request, TAB_BY_SLUG["limits"], "_reset_confirm.html", context)


def _get_usage(limits: usage_status.StaffLimits) -> dict[str, int]:
    return {
        name: amount
        for name, amount in asdict(limits).items()
        if name in ("daily_used_microdollars", "weekly_used_microdollars")
    }


def _get_back_url(user_id: int) -> str:
    return f"{get_tab_url('limits')}?user={user_id}"
