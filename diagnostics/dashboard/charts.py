"""Draw time series as SVG charts on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

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
            AxisMark(at=_scale_y(share * top, top), text=_format_number(share * top, unit))
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
        latest=_format_number(points[-1][1], unit) if points else "",
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


def _format_number(value: float, unit: str) -> str:
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
