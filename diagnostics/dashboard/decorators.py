"""Guard the dashboard's views, and render a tab as a page or as a fragment that refreshes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.cache import never_cache

from config.core.errors import TooManyRequests
from config.core.staff_permissions import SEE_EMAIL, StaffAct, can_perform_staff_act, is_login_recent
from diagnostics import snapshot
from diagnostics.api.views import build_actor, check_staff_rate_limit
from diagnostics.audit import RepairActor
from diagnostics.dashboard.tabs import TABS, Tab
from diagnostics.findings.figures import Summary

P = ParamSpec("P")
REFRESH_SECONDS = 30
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def staff_only(act: StaffAct = "diagnostics.read") -> Callable[[View[P]], View[P]]:
    """Send visitors to the login, refuse people without the permission, and require a login of today for changes.

    Pages and REST calls count against the same rate limit.
    """

    def decorate(view: View[P]) -> View[P]:
        def guard(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            if not can_perform_staff_act(get_staff_user(request), act):
                raise PermissionDenied
            check_staff_rate_limit(request)
            if request.method == "POST" and not is_login_recent(get_staff_user(request), request.session):
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            return view(request, *args, **kwargs)

        @never_cache
        @wraps(view)
        def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            try:
                return guard(request, *args, **kwargs)
            except (OperationalError, InterfaceError):  # the user or the result of the request is unknown
                connection.close()
                return HttpResponse(render_to_string("admin/diagnostics/away.html"), status=503)
            except TooManyRequests as refusal:
                return _rate_limited_response(refusal)

        return wrapper

    return decorate


def _rate_limited_response(refusal: TooManyRequests) -> HttpResponse:
    seconds = str(refusal.retry_after_seconds)
    words = f"{refusal.message} Try again in {seconds} s. Nothing was changed."
    return HttpResponse(words, status=429, content_type="text/plain", headers={"Retry-After": seconds})


def get_staff_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # staff_only admits nobody else
    return request.user


def get_actor(request: HttpRequest) -> RepairActor:
    return build_actor(get_staff_user(request), request.META.get("REMOTE_ADDR", ""))


def can_see_email(request: HttpRequest) -> bool:
    return get_staff_user(request).has_perm(SEE_EMAIL)


def can_repair(request: HttpRequest) -> bool:
    return can_perform_staff_act(get_staff_user(request), "diagnostics.repair")


# --- Rendering ---


@dataclass(frozen=True, kw_only=True)
class TabLink:
    slug: str
    title: str
    url: str
    tone: str
    count: int | None


def render_tab(
    request: HttpRequest, tab: Tab, template: str, context: Mapping[str, object], *, status: int = 200
) -> HttpResponse:
    """Render the whole page, or only its content for the script that refreshes it or opens it in a dialog."""
    content_template = f"admin/diagnostics/{template}"
    shared = {"tab": tab, "may_repair": can_repair(request), **context}
    if is_fragment_request(request) and request.method == "POST":
        return render(request, content_template, shared, status=status)
    shared |= {"tabs": build_tab_links(snapshot.get_summary()), "template": content_template}
    if is_fragment_request(request):
        return render(request, "admin/diagnostics/renewed.html", shared, status=status)
    page_context = {
        **admin.site.each_context(request),
        "title": f"{tab.title} · Diagnostics",
        "is_nav_sidebar_enabled": False,  # the tabs are the navigation, and tables need the width
        "refresh_seconds": REFRESH_SECONDS,
        **shared,
    }
    return render(request, "admin/diagnostics/frame.html", page_context, status=status)


def is_fragment_request(request: HttpRequest) -> bool:
    return "X-Fragment" in request.headers


def build_tab_links(summary: Summary) -> list[TabLink]:
    return [
        TabLink(
            slug=tab.slug,
            title=tab.title,
            url=get_tab_url(tab.slug),
            tone=tab.tone,
            count=_count_in_tab(tab, summary),
        )
        for tab in TABS
    ]


def get_tab_url(place: str) -> str:
    """Return the URL of a tab, or of a part of its list such as `running?only=cancel_backlog`."""
    slug, separator, query = place.partition("?")
    return (
        reverse("diagnostics:tab", args=[slug]) + separator + query
        if slug
        else reverse("diagnostics:overview")
    )


def _count_in_tab(tab: Tab, summary: Summary) -> int | None:
    known = [number for name in tab.counts if (number := getattr(summary, name)) is not None]
    return sum(known) if known else None
