"""The first page: is it healthy, in one sentence, then in figures and in lines (D13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from diagnostics.dashboard import charts
from diagnostics.dashboard.tabs import Tone
from diagnostics.findings import Finding, Summary
from diagnostics.models import MetricSample
from diagnostics.templatetags.diagnostics import age

UNKNOWN = "?"
RANGES: Mapping[str, tuple[str, timedelta]] = {
    "1h": ("1 hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
}
CHARTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Succeeded in the hour before", "", (("succeeded_1h", "turns"),)),
    ("Latency", "ms", (("latency_p50_ms", "half below"), ("latency_p95_ms", "95 % below"))),
    ("Failed in the hour before", "", (("failed_1h", "turns"),)),
    ("Waiting for a worker", "", (("queued", "turns"), ("broker_depth", "tasks"))),
)
WHERE: Mapping[str, str] = {  # the tab, and the part of it, that shows what a finding is about
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
ABOUT_SESSIONS = frozenset({"stranded_pending", "lease_without_turn"})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    tone: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Card:
    name: str
    value: str
    more: str = ""
    tab: str = ""
    tone: Tone = ""


def verdict(findings: Sequence[Finding], summary: Summary) -> Verdict:
    """What the person on call reads first."""
    critical = [finding for finding in findings if finding.severity == "critical"]
    warnings = [finding for finding in findings if finding.severity == "warning"]
    if critical:
        more = f", and {len(critical) - 1} more" if len(critical) > 1 else ""
        return Verdict(tone="critical", words=f"Act now: {critical[0].title}{more}")
    if summary.degraded:
        return Verdict(tone="warning", words="Not everything could be looked at")
    if warnings:
        more = f", and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        return Verdict(tone="warning", words=f"Have a look: {warnings[0].title}{more}")
    return Verdict(tone="good", words="All is well")


def cards(summary: Summary) -> list[Card]:
    return [*_unfinished(summary), *_ended(summary), *_around(summary)]


def _unfinished(summary: Summary) -> list[Card]:
    orphans = _sum(summary.orphaned_running, summary.orphaned_queued)
    return [
        Card(
            name="Running",
            value=_count(summary.running),
            more=_oldest(summary.oldest_running_seconds),
            tab="running",
        ),
        Card(
            name="Queued",
            value=_count(summary.queued),
            more=_oldest(summary.oldest_queued_seconds),
            tab="queued",
            tone="warning" if (summary.oldest_queued_seconds or 0) > 60 else "",
        ),
        Card(
            name="Waiting for people",
            value=_count(summary.waiting),
            more=f"{_count(summary.waiting_old)} over a day" if summary.waiting_old else "",
            tab="waiting",
        ),
        Card(
            name="Orphaned",
            value=_count(orphans),
            more="nobody runs them",
            tab="orphaned",
            tone="critical" if orphans else "",
        ),
        Card(
            name="Stuck queued",
            value=_count(summary.stuck_queued),
            more="over an hour",
            tab="stuck-queued",
            tone="warning" if summary.stuck_queued else "",
        ),
        Card(
            name="Stops not obeyed",
            value=_count(summary.cancel_backlog),
            more="over 5 s",
            tab="running?only=cancel_backlog",
            tone="warning" if summary.cancel_backlog else "",
        ),
    ]


def _ended(summary: Summary) -> list[Card]:
    return [
        Card(
            name="Failed, 1 h",
            value=_count(summary.failed_1h),
            more=f"{_share(summary.failure_ratio_1h)}; in 24 h {_share(summary.failure_ratio_24h)}",
            tab="failed",
        ),
        Card(
            name="Succeeded, 1 h",
            value=_count(summary.succeeded_1h),
            more=f"{_number(summary.throughput_per_hour_24h)} an hour in 24 h",
        ),
        Card(
            name="Latency",
            value=_milliseconds(summary.latency_p50_ms),
            more=f"95 % below {_milliseconds(summary.latency_p95_ms)}",
        ),
        Card(
            name="First word",
            value=_milliseconds(summary.first_event_p95_ms),
            more=f"95 % below; in the queue {_milliseconds(summary.queue_wait_p95_ms)}",
        ),
    ]


def _around(summary: Summary) -> list[Card]:
    return [
        Card(
            name="In the broker",
            value=_count((summary.broker_depth or {}).get("total"))
            if summary.broker_depth is not None
            else UNKNOWN,
            more=f"{_count(summary.broker_unacked)} in workers' hands",
        ),
        Card(
            name="Messages waiting",
            value=_count(summary.pending_messages),
            more=f"{_count(summary.stranded_sessions)} stranded",
            tab="queued?only=stranded_pending",
            tone="warning" if summary.stranded_sessions else "",
        ),
        Card(name="Recovered, 24 h", value=_count(summary.recovered_24h), more="taken from dead workers"),
        Card(
            name="Invalid",
            value=_count(summary.invalid_total),
            tab="invalid",
            tone="critical" if summary.invalid_total else "",
        ),
        Card(
            name="Active",
            value=_count(summary.active_users),
            more=f"users, {_count(summary.active_sessions)} sessions, {_count(summary.active_agents)} agents",
        ),
    ]


def drawn(name: str, until: datetime) -> list[charts.Chart]:
    """Four pictures from one read of the samples."""
    span = charts.Span(since=until - RANGES[name][1], until=until)
    wanted = {metric for _, _, lines in CHARTS for metric, _ in lines}
    rows = MetricSample.objects.filter(name__in=wanted, taken_at__gte=span.since).order_by("taken_at")
    points: dict[str, list[charts.Point]] = {metric: [] for metric in wanted}
    for metric, taken_at, value in rows.values_list("name", "taken_at", "value"):
        points[metric].append((taken_at, value))
    return [
        charts.draw(
            title,
            span,
            [charts.Series(label=label, points=points[metric]) for metric, label in lines],
            unit=unit,
        )
        for title, unit, lines in CHARTS
    ]


def _sum(*numbers: int | None) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def _number(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.2f}"


def _share(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio * 100:.1f} %"


def _oldest(seconds: float | None) -> str:
    return f"oldest {age(seconds)}" if seconds is not None else ""


def _milliseconds(number: float | None) -> str:
    if number is None:
        return "–"
    if number >= 120_000:
        return age(number / 1000)
    return f"{number / 1000:.1f} s" if number >= 1000 else f"{number:.0f} ms"
