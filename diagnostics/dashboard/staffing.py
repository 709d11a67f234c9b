"""Who may look, who may act, and how a tab is shown: as a page, or as the part of it that renews itself (D13, D14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
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

from config.core.staff_rights import SEE_EMAIL, StaffAct, can_perform, is_login_recent
from copilot.errors import TooMany
from diagnostics import snapshot
from diagnostics.api.doors import actor_of, check_rate
from diagnostics.audit import Actor
from diagnostics.dashboard.tabs import TABS, Tab
from diagnostics.findings import Summary

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def staff_only(act: StaffAct = "diagnostics.read") -> Callable[[View[P]], View[P]]:
    """Strangers are asked to log in, others told no, both before any work; whoever acts has logged in today.

    Pages count with the calls of programs: nobody looks or acts oftener by opening another door.
    """

    def guarded(view: View[P]) -> View[P]:
        def guard(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            if not can_perform(person(request), act):
                raise PermissionDenied
            check_rate(request)
            if request.method == "POST" and not is_login_recent(person(request), request.session):
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            return view(request, *args, **kwargs)

        @never_cache
        @wraps(view)
        def answered(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            try:
                return guard(request, *args, **kwargs)
            except (OperationalError, InterfaceError):  # who asks cannot be known, or what became of it
                connection.close()
                return HttpResponse(render_to_string("admin/diagnostics/away.html"), status=503)
            except TooMany as refusal:
                return _slower(refusal)

        return answered

    return guarded


def _slower(refusal: TooMany) -> HttpResponse:
    seconds = str(refusal.retry_after_seconds)
    words = f"{refusal.message} Try again in {seconds} s; nothing was changed."
    return HttpResponse(words, status=429, content_type="text/plain", headers={"Retry-After": seconds})


def person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # nobody else was let in
    return request.user


def actor(request: HttpRequest) -> Actor:
    return actor_of(person(request), request.META.get("REMOTE_ADDR", ""))


def sees_email(request: HttpRequest) -> bool:
    return person(request).has_perm(SEE_EMAIL)


def may_repair(request: HttpRequest) -> bool:
    return can_perform(person(request), "diagnostics.repair")


# --- showing -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TabShown:
    slug: str
    title: str
    url: str
    tone: str
    count: int | None


def show(
    request: HttpRequest, tab: Tab, template: str, context: Mapping[str, object], *, status: int = 200
) -> HttpResponse:
    """The whole page, or only what it shows, for the script that renews it or opens it in a dialog."""
    inner = f"admin/diagnostics/{template}"
    shared = {"tab": tab, "may_repair": may_repair(request), **context}
    if is_fragment(request) and request.method == "POST":
        return render(request, inner, shared, status=status)
    shared |= {"tabs": tabs_shown(snapshot.summary()), "template": inner}
    if is_fragment(request):
        return render(request, "admin/diagnostics/renewed.html", shared, status=status)
    frame = {
        **admin.site.each_context(request),
        "title": f"{tab.title} · Diagnostics",
        "is_nav_sidebar_enabled": False,  # its tabs are the navigation, and tables need the width
        "refresh_seconds": settings.DIAG_REFRESH_SECONDS,
        **shared,
    }
    return render(request, "admin/diagnostics/frame.html", frame, status=status)


def is_fragment(request: HttpRequest) -> bool:
    return "X-Fragment" in request.headers


def tabs_shown(summary: Summary) -> list[TabShown]:
    return [
        TabShown(
            slug=tab.slug, title=tab.title, url=url_of(tab.slug), tone=tab.tone, count=_count(tab, summary)
        )
        for tab in TABS
    ]


def url_of(place: str) -> str:
    """Of a tab, or of a part of its list: `running?only=cancel_backlog`."""
    slug, asks, query = place.partition("?")
    return reverse("diagnostics:tab", args=[slug]) + asks + query if slug else reverse("diagnostics:overview")


def _count(tab: Tab, summary: Summary) -> int | None:
    known = [number for name in tab.counts if (number := getattr(summary, name)) is not None]
    return sum(known) if known else None
