"""Record the figures of every minute, for charts and trends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from diagnostics.findings.figures import Summary
from diagnostics.models import MetricSample

SAMPLE_NAMES = (
    "running", "queued", "waiting", "broker_depth", "failed_1h", "succeeded_1h", "failure_ratio_1h",
    "throughput_per_hour_24h", "latency_p50_ms", "latency_p95_ms", "queue_wait_p95_ms", "orphaned_running",
    "stuck_queued",
)  # fmt: skip
SAMPLE_RANGES = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
KEEP_DAYS = 7  # the longest range that charts show
MAX_SERIES_POINTS = 360  # charts are not wider


@dataclass(frozen=True, kw_only=True)
class Point:
    at: datetime
    value: float


@dataclass(frozen=True, kw_only=True)
class Series:
    metric: str
    range: str
    points: list[Point]


def record_samples(summary: Summary) -> int:
    """Store one row per known figure; a second call within the minute changes nothing."""
    minute = summary.taken_at.replace(second=0, microsecond=0)
    values = {name: get_value(summary, name) for name in SAMPLE_NAMES}
    rows = [
        MetricSample(taken_at=minute, name=name, value=value)
        for name, value in values.items()
        if value is not None
    ]
    MetricSample.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def get_value(summary: Summary, name: str) -> float | None:
    if name == "broker_depth":
        return None if summary.broker_depth is None else float(summary.broker_depth["total"])
    value: float | None = getattr(summary, name)
    return None if value is None else float(value)


def get_series(metric: str, span: str) -> Series:
    """Return a series, oldest first, thinned out if it is long."""
    since = timezone.now() - SAMPLE_RANGES[span]
    rows = MetricSample.objects.filter(name=metric, taken_at__gte=since).order_by("taken_at")
    points = [Point(at=at, value=value) for at, value in rows.values_list("taken_at", "value")]
    step = -(-len(points) // MAX_SERIES_POINTS) or 1
    return Series(metric=metric, range=span, points=points[::step])


def get_recent_values(metric: str, count: int) -> tuple[float, ...]:
    """Return the latest values, newest last; old ones say nothing about now."""
    since = datetime.now(UTC) - timedelta(minutes=2 * count)
    rows = MetricSample.objects.filter(name=metric, taken_at__gte=since).order_by("-taken_at")
    return tuple(reversed(rows.values_list("value", flat=True)[:count]))


def purge_samples() -> int:
    old = MetricSample.objects.filter(taken_at__lt=timezone.now() - timedelta(days=KEEP_DAYS))
    removed, _ = old.delete()
    return removed
