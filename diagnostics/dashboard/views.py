"""The dashboard's tabs, as pages of the admin site."""

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
from config.core.errors import InvalidRequest, NotFound, ServiceUnavailable
from diagnostics import audit_delivery, metrics, snapshot, timeline
from diagnostics.api.executions import escape_csv_cell
from diagnostics.dashboard import limits, overview, tables, workers
from diagnostics.dashboard.decorators import (
    can_see_email,
    get_staff_user,
    get_tab_url,
    render_tab,
    staff_only,
)
from diagnostics.dashboard.tabs import EXECUTION_TAB, TAB_BY_SLUG, Tab, TabKind
from diagnostics.findings import rules
from diagnostics.templatetags.diagnostics import format_figure

ContextBuilder = Callable[[HttpRequest, Tab], tables.TabContext]
MAX_AUDIT_FILE_ROWS = 50_000
TAB_SOURCES: Mapping[TabKind, tuple[str, ContextBuilder]] = {
    "executions": ("_executions.html", tables.build_executions_context),
    "workers": ("_workers.html", workers.build_workers_context),
    "schedules": ("_schedules.html", tables.build_schedules_context),
    "audit": ("_audit.html", tables.build_audit_context),
    "limits": ("_limits.html", limits.build_limits_context),
}


@staff_only()
@require_safe
def show_overview(request: HttpRequest) -> HttpResponse:
    span = request.GET.get("range", "1h")
    if span not in overview.CHART_RANGES:
        raise Http404
    seen = snapshot.get_snapshot()
    found = rules.evaluate_findings(seen)
    return render_tab(
        request,
        TAB_BY_SLUG[""],
        "_overview.html",
        {
            "verdict": overview.judge_health(found, seen.summary),
            "findings": [_build_finding_context(finding) for finding in found],
            "cards": [
                {**asdict(card), "link": get_tab_url(card.tab) if card.tab else ""}
                for card in overview.build_cards(seen.summary)
            ],
            "charts": _draw_charts(span),
            "ranges": [
                {"name": name, "words": words, "chosen": name == span}
                for name, (words, _) in overview.CHART_RANGES.items()
            ],
            "probes": metrics.get_probe_results(),
            "degraded": seen.summary.degraded,
            "taken_at": seen.summary.taken_at,
        },
    )


def _build_finding_context(finding: rules.Finding) -> dict[str, object]:
    slug = overview.FINDING_TABS.get(finding.code, "")
    figures = [format_figure(name, number) for name, number in finding.numbers.items()]
    ids = [(target_id, _get_subject_url(finding.code, target_id)) for target_id in finding.ids]
    return {**asdict(finding), "figures": figures, "ids": ids, "link": get_tab_url(slug) if slug else ""}


def _get_subject_url(code: str, identifier: str) -> str:
    """Link findings about sessions to sessions, and all others to executions."""
    if code in overview.SESSION_FINDINGS:
        return reverse("admin:copilot_session_change", args=[identifier])
    return reverse("diagnostics:execution", args=[identifier])


def _draw_charts(span: str) -> list[object]:
    try:
        return list(overview.draw_charts(span, timezone.now()))
    except Error:  # the page already says that Postgres does not answer
        connection.close()
        return []


@staff_only()
@require_safe
def show_execution(request: HttpRequest, execution_id: UUID) -> HttpResponse:
    try:
        story = timeline.get_story(execution_id, see_email=can_see_email(request))
    except NotFound:
        raise Http404 from None
    may_see_users = get_staff_user(request).has_perm("auth.view_user")
    context = {
        "item": tables.build_execution_row(story.execution, may_see_users=may_see_users),
        "timeline": story.timeline,
        "items": story.audit,
    }
    return render_tab(request, EXECUTION_TAB, "_story.html", context)


@staff_only("audit.export")
@require_safe
def download_audit_log(request: HttpRequest) -> HttpResponse:
    """Download the filtered audit log as CSV; the download is recorded itself."""
    try:
        audit_filter = tables.parse_audit_filter(request)
    except InvalidRequest as refusal:
        return HttpResponse(refusal.message, status=400, content_type="text/plain")
    rows = list(audit_filter.build_queryset()[:MAX_AUDIT_FILE_ROWS])
    filters = [f"{name}={value}" for name, value in request.GET.items() if value]
    record_audit_event("audit.exported", request=request, rows=len(rows), filters=filters)
    text = io.StringIO()
    writer = csv.writer(text)
    for number, event in enumerate(rows):
        fields = audit_delivery.serialize_event(event)
        if number == 0:
            writer.writerow(fields)
        writer.writerow(
            [
                escape_csv_cell(json.dumps(value) if isinstance(value, dict) else value)
                for value in fields.values()
            ]
        )
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


@staff_only()
@require_safe
def show_tab(request: HttpRequest, slug: str) -> HttpResponse:
    tab = TAB_BY_SLUG.get(slug)
    if tab is None or tab.kind not in TAB_SOURCES:
        raise Http404
    template, source = TAB_SOURCES[tab.kind]
    try:
        context, status = source(request, tab), 200
    except InvalidRequest as refusal:
        context, status = (
            {
                "problem": refusal.message,
                "filters": tables.build_filter_fields(tab, request.GET),
                "filtered": True,
            },
            400,
        )
    except (Error, ServiceUnavailable) as problem:
        connection.close()
        context, status = {"problem": f"A server is not answering ({type(problem).__name__})."}, 503
    status = int(str(context.pop("status", status)))
    return render_tab(request, tab, template, context, status=status)
