"""The dashboard's tabs, as pages of the staff's site (D13)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from uuid import UUID

from django.db import Error, connection
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from config.core.audit import record_audit_event
from copilot.errors import InvalidRequest, NotFound, Unavailable
from diagnostics import audit_delivery, findings, metrics, snapshot, timeline
from diagnostics.api.executions import cell
from diagnostics.dashboard import limits, listing, overview, processes
from diagnostics.dashboard.staffing import person, sees_email, show, staff_only, url_of
from diagnostics.dashboard.tabs import BY_SLUG, STORY, Kind, Tab
from diagnostics.templatetags.diagnostics import figure

Source = Callable[[HttpRequest, Tab], listing.Context]
AUDIT_FILE_ROWS = 50_000
TABLES: Mapping[Kind, tuple[str, Source]] = {
    "executions": ("_executions.html", listing.executions),
    "workers": ("_workers.html", processes.look),
    "schedules": ("_schedules.html", listing.schedules),
    "audit": ("_audit.html", listing.audit),
    "limits": ("_limits.html", limits.look),
}


@staff_only()
@require_safe
def first_page(request: HttpRequest) -> HttpResponse:
    span = request.GET.get("range", "1h")
    if span not in overview.RANGES:
        raise Http404
    seen = snapshot.take()
    found = findings.evaluate(seen)
    return show(
        request,
        BY_SLUG[""],
        "_overview.html",
        {
            "verdict": overview.verdict(found, seen.summary),
            "findings": [_with_link(finding) for finding in found],
            "cards": [
                {**asdict(card), "link": url_of(card.tab) if card.tab else ""}
                for card in overview.cards(seen.summary)
            ],
            "charts": _charts(span),
            "ranges": [
                {"name": name, "words": words, "chosen": name == span}
                for name, (words, _) in overview.RANGES.items()
            ],
            "probes": metrics.probed(),
            "degraded": seen.summary.degraded,
            "taken_at": seen.summary.taken_at,
        },
    )


def _with_link(finding: findings.Finding) -> dict[str, object]:
    slug = overview.WHERE.get(finding.code, "")
    figures = [figure(name, number) for name, number in finding.numbers.items()]
    ids = [(one, _page_of(finding.code, one)) for one in finding.ids]
    return {**asdict(finding), "figures": figures, "ids": ids, "link": url_of(slug) if slug else ""}


def _page_of(code: str, identifier: str) -> str:
    """Findings about sessions name sessions; all others name executions."""
    if code in overview.ABOUT_SESSIONS:
        return reverse("admin:copilot_session_change", args=[identifier])
    return reverse("diagnostics:execution", args=[identifier])


def _charts(span: str) -> list[object]:
    try:
        return list(overview.drawn(span, timezone.now()))
    except Error:  # the page says already that Postgres does not answer
        connection.close()
        return []


@staff_only()
@require_safe
def execution(request: HttpRequest, execution_id: UUID) -> HttpResponse:
    """One execution: what happened to it, and what was repaired."""
    try:
        told = timeline.story(execution_id, see_email=sees_email(request))
    except NotFound:
        raise Http404 from None
    may_see_users = person(request).has_perm("auth.view_user")
    context = {
        "item": listing.item(told.execution, may_see_users=may_see_users),
        "timeline": told.timeline,
        "items": told.audit,
    }
    return show(request, STORY, "_story.html", context)


@staff_only("audit.export")
@require_safe
def audit_file(request: HttpRequest) -> HttpResponse:
    """The filtered audit log as CSV; taking it is recorded itself."""
    try:
        wanted = listing.audit_filter(request)
    except InvalidRequest as refusal:
        return HttpResponse(refusal.message, status=400, content_type="text/plain")
    rows = list(wanted.rows()[:AUDIT_FILE_ROWS])
    asked = [f"{name}={given}" for name, given in request.GET.items() if given]
    record_audit_event("audit.exported", request=request, rows=len(rows), filters=asked)
    text = io.StringIO()
    writer = csv.writer(text)
    for number, event in enumerate(rows):
        fields = audit_delivery.event_fields(event)
        if number == 0:
            writer.writerow(fields)
        writer.writerow(
            [cell(json.dumps(value) if isinstance(value, dict) else value) for value in fields.values()]
        )
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


@staff_only()
@require_safe
def table(request: HttpRequest, slug: str) -> HttpResponse:
    tab = BY_SLUG.get(slug)
    if tab is None or tab.kind not in TABLES:
        raise Http404
    template, source = TABLES[tab.kind]
    try:
        context, status = source(request, tab), 200
    except InvalidRequest as refusal:
        context, status = (
            {"problem": refusal.message, "filters": listing.fields(tab, request.GET), "filtered": True},
            400,
        )
    except (Error, Unavailable) as problem:
        connection.close()
        context, status = {"problem": f"A server does not answer ({type(problem).__name__})."}, 503
    status = int(str(context.pop("status", status)))
    return show(request, tab, template, context, status=status)
