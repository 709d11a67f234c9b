"""The dashboard's tabs, as pages of the admin site."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
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
from diagnostics.dashboard import limits, tables
from diagnostics.dashboard.decorators import (
    can_see_email,
    get_staff_user,
    get_tab_url,
    render_tab,
    staff_only,
)
from diagnostics.dashboard.tabs import EXECUTION_TAB, TAB_BY_SLUG, Tab, TabKind, TabTone
from diagnostics.findings import rules
from diagnostics.findings.figures import Summary
from diagnostics.findings.rules import Finding
from diagnostics.models import MetricSample
from diagnostics.templatetags.diagnostics import age, format_figure

UNKNOWN = "?"
CHART_RANGES: Mapping[str, tuple[str, timedelta]] = {
    "1h": ("1 hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
}
CHART_DEFINITIONS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Succeeded in the hour before", "", (("succeeded_1h", "turns"),)),
    ("Latency", "ms", (("latency_p50_ms", "half below"), ("latency_p95_ms", "95 % below"))),
    ("Failed in the hour before", "", (("failed_1h", "turns"),)),
    ("Waiting for a worker", "", (("queued", "turns"), ("broker_depth", "tasks"))),
)
FINDING_TABS: Mapping[str, str] = {  # the tab, or the part of it, that lists what a finding is about
    "orphans": "orphaned",
    "stuck_queue": "stuck-queued",
    "failure_spike": "failed",
    "long_running": "running?only=long_running_1h",
    "invalid_state": "invalid",
    "cancel_backlog": "running?only=cancel_backlog",
    "stranded_pending": "queued?only=stranded_pending",
    "no_workers": "workers",
    "mixed_versions": "workers",
    "queue_growing": "queued",
    "slow_start": "queued",
    "reaper_silent": "workers",
    "reaper_blind": "workers",
    "scheduler_silent": "workers",
    "deaf_workers": "workers",
    "queue_silent:maintenance": "workers",
    "queue_silent:default": "workers",
    "task_backlog": "workers",
    "update_backlog": "workers",
    "delivery_backlog": "workers",
    "orphaned_schedules": "orphaned-schedules",
}
SESSION_FINDINGS = frozenset({"stranded_pending", "lease_without_turn"})


@dataclass(frozen=True, kw_only=True)
class HealthVerdict:
    tone: str
    words: str


@dataclass(frozen=True, kw_only=True)
class OverviewCard:
    name: str
    value: str
    more: str = ""
    tab: str = ""
    tone: TabTone = ""


def judge_health(findings: Sequence[Finding], summary: Summary) -> HealthVerdict:
    """Summarise the findings in one sentence for the person on call."""
    critical = [finding for finding in findings if finding.severity == "critical"]
    warnings = [finding for finding in findings if finding.severity == "warning"]
    if critical:
        more = f", and {len(critical) - 1} more" if len(critical) > 1 else ""
        return HealthVerdict(tone="critical", words=f"Act now: {critical[0].title}{more}")
    if summary.degraded:
        return HealthVerdict(tone="warning", words="Some sources could not be read")
    if warnings:
        more = f", and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        return HealthVerdict(tone="warning", words=f"Check: {warnings[0].title}{more}")
    return HealthVerdict(tone="good", words="All is well")


def build_cards(summary: Summary) -> list[OverviewCard]:
    return [*_build_unfinished_cards(summary), *_build_ended_cards(summary), *_build_system_cards(summary)]


def _build_unfinished_cards(summary: Summary) -> list[OverviewCard]:
    orphans = _sum_known(summary.orphaned_running, summary.orphaned_queued)
    return [
        OverviewCard(
            name="Running",
            value=_format_count(summary.running),
            more=_format_oldest(summary.oldest_running_seconds),
            tab="running",
        ),
        OverviewCard(
            name="Queued",
            value=_format_count(summary.queued),
            more=_format_oldest(summary.oldest_queued_seconds),
            tab="queued",
            tone="warning" if (summary.oldest_queued_seconds or 0) > 60 else "",
        ),
        OverviewCard(
            name="Waiting for people",
            value=_format_count(summary.waiting),
            more=f"{_format_count(summary.waiting_old)} over a day" if summary.waiting_old else "",
            tab="waiting",
        ),
        OverviewCard(
            name="Orphaned",
            value=_format_count(orphans),
            more="no worker runs them",
            tab="orphaned",
            tone="critical" if orphans else "",
        ),
        OverviewCard(
            name="Stuck queued",
            value=_format_count(summary.stuck_queued),
            more="over an hour",
            tab="stuck-queued",
            tone="warning" if summary.stuck_queued else "",
        ),
        OverviewCard(
            name="Stops overdue",
            value=_format_count(summary.cancel_backlog),
            more="over 5 s",
            tab="running?only=cancel_backlog",
            tone="warning" if summary.cancel_backlog else "",
        ),
    ]


def _build_ended_cards(summary: Summary) -> list[OverviewCard]:
    return [
        OverviewCard(
            name="Failed, 1 h",
            value=_format_count(summary.failed_1h),
            more=f"{_format_percent(summary.failure_ratio_1h)}; in 24 h {_format_percent(summary.failure_ratio_24h)}",
            tab="failed",
        ),
        OverviewCard(
            name="Succeeded, 1 h",
            value=_format_count(summary.succeeded_1h),
            more=f"{_format_number(summary.throughput_per_hour_24h)} an hour in 24 h",
        ),
        OverviewCard(
            name="Latency",
            value=_format_milliseconds(summary.latency_p50_ms),
            more=f"95 % below {_format_milliseconds(summary.latency_p95_ms)}",
        ),
        OverviewCard(
            name="First token",
            value=_format_milliseconds(summary.first_event_p95_ms),
            more=f"95 % below; in the queue {_format_milliseconds(summary.queue_wait_p95_ms)}",
        ),
    ]


def _build_system_cards(summary: Summary) -> list[OverviewCard]:
    return [
        OverviewCard(
            name="In the broker",
            value=_format_count((summary.broker_depth or {}).get("total"))
            if summary.broker_depth is not None
            else UNKNOWN,
            more=f"{_format_count(summary.broker_unacked)} taken by workers",
        ),
        OverviewCard(
            name="Messages waiting",
            value=_format_count(summary.pending_messages),
            more=f"{_format_count(summary.stranded_sessions)} stranded",
            tab="queued?only=stranded_pending",
            tone="warning" if summary.stranded_sessions else "",
        ),
        OverviewCard(
            name="Recovered, 24 h", value=_format_count(summary.recovered_24h), more="taken from dead workers"
        ),
        OverviewCard(
            name="Invalid",
            value=_format_count(summary.invalid_total),
            tab="invalid",
            tone="critical" if summary.invalid_total else "",
        ),
        OverviewCard(
            name="Active",
            value=_format_count(summary.active_users),
            more=f"users, {_format_count(summary.active_sessions)} sessions, {_format_count(summary.active_agents)} agents",
        ),
    ]


def draw_charts(name: str, until: datetime) -> list[Chart]:
    """Draw the charts from one query of the samples."""
    span = TimeSpan(since=until - CHART_RANGES[name][1], until=until)
    metrics = {metric for _, _, lines in CHART_DEFINITIONS for metric, _ in lines}
    rows = MetricSample.objects.filter(name__in=metrics, taken_at__gte=span.since).order_by("taken_at")
    points: dict[str, list[ChartPoint]] = {metric: [] for metric in metrics}
    for metric, taken_at, value in rows.values_list("name", "taken_at", "value"):
        points[metric].append((taken_at, value))
    return [
        draw_chart(
            title,
            span,
            [ChartSeries(label=label, points=points[metric]) for metric, label in lines],
            unit=unit,
        )
        for title, unit, lines in CHART_DEFINITIONS
    ]


def _sum_known(*numbers: int | None) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _format_count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def _format_number(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.2f}"


def _format_percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio * 100:.1f} %"


def _format_oldest(seconds: float | None) -> str:
    return f"oldest {age(seconds)}" if seconds is not None else ""


def _format_milliseconds(number: float | None) -> str:
    if number is None:
        return "–"
    if number >= 120_000:
        return age(number / 1000)
    return f"{number / 1000:.1f} s" if number >= 1000 else f"{number:.0f} ms"


WIDTH, HEIGHT = 560, 150
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 26
MAX_CHART_POINTS = 180  # a line of this width cannot show more
SCALE_STEPS = (1, 2, 2.5, 5, 10)

ChartPoint = tuple[datetime, float]


@dataclass(frozen=True, kw_only=True)
class ChartSeries:
    label: str
    points: Sequence[ChartPoint]  # in the order of time


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    number: int  # selects its colour
    label: str
    latest: str
    path: str
    dot: tuple[float, float] | None  # where it ends


@dataclass(frozen=True, kw_only=True)
class AxisMark:
    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    words: str  # the text alternative
    lines: list[ChartLine]
    rows: list[AxisMark]  # marks of the value axis
    columns: list[AxisMark]  # marks of the time axis
    empty: bool


@dataclass(frozen=True, kw_only=True)
class TimeSpan:
    since: datetime
    until: datetime

    def scale_x(self, moment: datetime) -> float:
        share = (moment - self.since) / (self.until - self.since)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def draw_chart(title: str, span: TimeSpan, series: Sequence[ChartSeries], *, unit: str = "") -> Chart:
    thinned = [ChartSeries(label=line.label, points=_thin_points(line.points, span)) for line in series]
    top = _round_up(max((value for line in thinned for _, value in line.points), default=0.0))
    lines = [_build_line(number, item, span, top, unit) for number, item in enumerate(thinned, start=1)]
    values = "; ".join(f"{line.label} {line.latest}" for line in lines if line.latest)
    return Chart(
        title=title,
        words=f"{title}: now {values}" if values else f"{title}: nothing was measured",
        lines=lines,
        rows=[
            AxisMark(at=_scale_y(share * top, top), text=_format_value(share * top, unit))
            for share in (0.0, 0.5, 1.0)
        ],
        columns=list(_iter_time_marks(span)),
        empty=not any(line.points for line in thinned),
    )


def _build_line(number: int, series: ChartSeries, span: TimeSpan, top: float, unit: str) -> ChartLine:
    """Build a line with a gap, not a slope, where nothing was measured."""
    points, path, previous = series.points, [], None
    max_gap = (span.until - span.since) / MAX_CHART_POINTS * 3
    for moment, value in points:
        starts_segment = previous is None or moment - previous > max_gap
        path.append(f"{'M' if starts_segment else 'L'}{span.scale_x(moment)} {_scale_y(value, top)}")
        previous = moment
    return ChartLine(
        number=number,
        label=series.label,
        latest=_format_value(points[-1][1], unit) if points else "",
        path=" ".join(path),
        dot=(span.scale_x(points[-1][0]), _scale_y(points[-1][1], top)) if points else None,
    )


def _thin_points(points: Sequence[ChartPoint], span: TimeSpan) -> list[ChartPoint]:
    """Reduce the points to their means over equal parts of the time span."""
    width = (span.until - span.since) / MAX_CHART_POINTS
    buckets: dict[int, list[ChartPoint]] = {}
    for moment, value in points:
        if span.since <= moment <= span.until:
            buckets.setdefault(int((moment - span.since) / width), []).append((moment, value))
    return [(bucket[-1][0], sum(value for _, value in bucket) / len(bucket)) for bucket in buckets.values()]


def _scale_y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)


def _round_up(maximum: float) -> float:
    """Round up to a number that suits the end of a scale."""
    if maximum <= 0:
        return 1.0
    size = 1.0
    while size * 10 <= maximum:
        size *= 10
    while size > maximum:
        size /= 10
    return next(step * size for step in SCALE_STEPS if step * size >= maximum)


def _format_value(value: float, unit: str) -> str:
    if unit == "ms" and value >= 120_000:
        return f"{value / 60_000:,.0f} min"
    if unit == "ms":
        return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.0f} ms"
    if unit == "%":
        return f"{value * 100:.3g} %"
    if value >= 10_000:
        return f"{value / 1000:,.4g}k {unit}".strip()
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"
    return f"{text} {unit}".strip()


def _iter_time_marks(span: TimeSpan) -> Iterator[AxisMark]:
    days = span.until - span.since > timedelta(days=2)
    moments = [span.since + (span.until - span.since) / 4 * number for number in range(5)]
    for moment, _ in pairwise([*moments, span.until]):
        yield AxisMark(at=span.scale_x(moment), text=f"{moment:%a %d}" if days else f"{moment:%H:%M}")


ContextBuilder = Callable[[HttpRequest, Tab], tables.TabContext]
MAX_AUDIT_FILE_ROWS = 50_000
TAB_SOURCES: Mapping[TabKind, tuple[str, ContextBuilder]] = {
    "executions": ("_executions.html", tables.build_executions_context),
    "workers": ("_workers.html", tables.build_workers_context),
    "schedules": ("_schedules.html", tables.build_schedules_context),
    "audit": ("_audit.html", tables.build_audit_context),
    "limits": ("_limits.html", limits.build_limits_context),
}


@staff_only()
@require_safe
def show_overview(request: HttpRequest) -> HttpResponse:
    span = request.GET.get("range", "1h")
    if span not in CHART_RANGES:
        raise Http404
    seen = snapshot.get_snapshot()
    found = rules.evaluate_findings(seen)
    return render_tab(
        request,
        TAB_BY_SLUG[""],
        "_overview.html",
        {
            "verdict": judge_health(found, seen.summary),
            "findings": [_build_finding_context(finding) for finding in found],
            "cards": [
                {**asdict(card), "link": get_tab_url(card.tab) if card.tab else ""}
                for card in build_cards(seen.summary)
            ],
            "charts": _draw_charts(span),
            "ranges": [
                {"name": name, "words": words, "chosen": name == span}
                for name, (words, _) in CHART_RANGES.items()
            ],
            "probes": metrics.get_probe_results(),
            "degraded": seen.summary.degraded,
            "taken_at": seen.summary.taken_at,
        },
    )


def _build_finding_context(finding: rules.Finding) -> dict[str, object]:
    slug = FINDING_TABS.get(finding.code, "")
    figures = [format_figure(name, number) for name, number in finding.numbers.items()]
    ids = [(target_id, _get_subject_url(finding.code, target_id)) for target_id in finding.ids]
    return {**asdict(finding), "figures": figures, "ids": ids, "link": get_tab_url(slug) if slug else ""}


def _get_subject_url(code: str, identifier: str) -> str:
    """Link findings about sessions to sessions, and all others to executions."""
    if code in SESSION_FINDINGS:
        return reverse("admin:copilot_session_change", args=[identifier])
    return reverse("diagnostics:execution", args=[identifier])


def _draw_charts(span: str) -> list[object]:
    try:
        return list(draw_charts(span, timezone.now()))
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
