"""Figures of many minutes as one picture: lines of an SVG, drawn on the server (D13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

WIDTH, HEIGHT = 560, 150
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 26
MOST_POINTS = 180  # more than a line of this width can show
STEPS = (1, 2, 2.5, 5, 10)

Point = tuple[datetime, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    label: str
    points: Sequence[Point]  # in the order of time


@dataclass(frozen=True, kw_only=True)
class Line:
    number: int  # its colour
    label: str
    latest: str
    path: str
    dot: tuple[float, float] | None  # where it ends


@dataclass(frozen=True, kw_only=True)
class Mark:
    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    words: str  # for who cannot see it
    lines: list[Line]
    rows: list[Mark]  # of the scale
    columns: list[Mark]  # of the clock
    empty: bool


@dataclass(frozen=True, kw_only=True)
class Span:
    since: datetime
    until: datetime

    def x(self, moment: datetime) -> float:
        share = (moment - self.since) / (self.until - self.since)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def draw(title: str, span: Span, series: Sequence[Series], *, unit: str = "") -> Chart:
    thinned = [Series(label=one.label, points=_thinned(one.points, span)) for one in series]
    top = _round_up(max((value for one in thinned for _, value in one.points), default=0.0))
    lines = [_line(number, one, span, top, unit) for number, one in enumerate(thinned, start=1)]
    told = "; ".join(f"{line.label} {line.latest}" for line in lines if line.latest)
    return Chart(
        title=title,
        words=f"{title}: now {told}" if told else f"{title}: nothing was measured",
        lines=lines,
        rows=[Mark(at=_y(share * top, top), text=_number(share * top, unit)) for share in (0.0, 0.5, 1.0)],
        columns=list(_clock(span)),
        empty=not any(one.points for one in thinned),
    )


def _line(number: int, series: Series, span: Span, top: float, unit: str) -> Line:
    """Minutes that nobody measured are a gap, not a slope."""
    points, path, after = series.points, [], None
    longest = (span.until - span.since) / MOST_POINTS * 3
    for moment, value in points:
        begins = after is None or moment - after > longest
        path.append(f"{'M' if begins else 'L'}{span.x(moment)} {_y(value, top)}")
        after = moment
    return Line(
        number=number,
        label=series.label,
        latest=_number(points[-1][1], unit) if points else "",
        path=" ".join(path),
        dot=(span.x(points[-1][0]), _y(points[-1][1], top)) if points else None,
    )


def _thinned(points: Sequence[Point], span: Span) -> list[Point]:
    """At most so many: each stands for the mean of its share of the time."""
    width = (span.until - span.since) / MOST_POINTS
    shares: dict[int, list[Point]] = {}
    for moment, value in points:
        if span.since <= moment <= span.until:
            shares.setdefault(int((moment - span.since) / width), []).append((moment, value))
    return [(some[-1][0], sum(value for _, value in some) / len(some)) for some in shares.values()]


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)


def _round_up(most: float) -> float:
    """A scale that ends at a number people like."""
    if most <= 0:
        return 1.0
    size = 1.0
    while size * 10 <= most:
        size *= 10
    while size > most:
        size /= 10
    return next(step * size for step in STEPS if step * size >= most)


def _number(value: float, unit: str) -> str:
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


def _clock(span: Span) -> Iterator[Mark]:
    days = span.until - span.since > timedelta(days=2)
    moments = [span.since + (span.until - span.since) / 4 * number for number in range(5)]
    for moment, _ in pairwise([*moments, span.until]):
        yield Mark(at=span.x(moment), text=f"{moment:%a %d}" if days else f"{moment:%H:%M}")
