"""Write the table of a run, the exponents of growth, and results.json."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.bars import LINES, Bar, Findings, Growth, Measured, Spec

RESULTS = Path(__file__).resolve().parent / "results.json"
TITLES = ("id", "measure", "value", "bar", "aim", "")


def exponent(growth: Growth) -> float:
    """Return the slope of cost over size on logarithmic scales; nan if a cost is not positive."""
    if len(growth.sizes) < 2 or min(growth.values) <= 0:
        return float("nan")
    xs = [math.log(size) for size in growth.sizes]
    ys = [math.log(value) for value in growth.values]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def verdict(line: Spec, measured: Measured) -> str:
    if not all(bar.met_by(value) for bar, value in zip(line.bars, measured.values, strict=True)):
        return "miss"
    if all(bar.aim_met_by(value) for bar, value in zip(line.bars, measured.values, strict=True)):
        return "ok, aim"
    return "ok"


def table(findings: Findings) -> str:
    rows = [TITLES]
    for name, line in LINES.items():
        measured = findings.lines.get(name)
        if measured is not None:
            aims = "" if all(bar.aim is None for bar in line.bars) else _joined(line.bars, _aims(line.bars))
            limits = _joined(line.bars, [_limit(bar, bar.bar) for bar in line.bars])
            value = _joined(line.bars, [_number(value) for value in measured.values])
            rows.append((name, line.measure, value, limits, aims, verdict(line, measured)))
    return align_columns(rows)


def _aims(bars: Sequence[Bar]) -> list[str]:
    return ["–" if bar.aim is None else _number(bar.aim) for bar in bars]


def _limit(bar: Bar, value: float) -> str:
    return f"{'≥' if bar.at_least else '≤'} {_number(value)}"


def _joined(bars: Sequence[Bar], texts: Sequence[str]) -> str:
    """Write the unit once at the end if all figures share it."""
    units = {bar.unit for bar in bars}
    if len(units) == 1:
        return f"{' / '.join(texts)} {units.pop()}".rstrip()
    return " / ".join(f"{text} {bar.unit}".rstrip() for text, bar in zip(texts, bars, strict=True))


def _number(value: float) -> str:
    if value != value:
        return "?"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def growth_table(growths: Sequence[Growth]) -> str:
    rows: list[tuple[str, ...]] = [("id", "growth of", "at", "cost", "exponent")]
    for growth in growths:
        sizes = " → ".join(f"{size:,}" for size in growth.sizes)
        values = " → ".join(f"{value:,.4g}" for value in growth.values)
        rows.append((growth.line, growth.cost, sizes, values, f"{exponent(growth):.2f}"))
    return align_columns(rows)


def write(findings: Findings, *, seconds: float, problems: dict[str, str]) -> None:
    """Write all results with absolute times, for comparing runs."""
    lines = {
        name: {
            "measure": LINES[name].measure,
            "values": measured.values,
            "units": [bar.unit for bar in LINES[name].bars],
            "bars": [bar.bar for bar in LINES[name].bars],
            "aims": [bar.aim for bar in LINES[name].bars],
            "verdict": verdict(LINES[name], measured),
            "detail": measured.detail,
        }
        for name, measured in findings.lines.items()
    }
    growths = [{**vars(growth), "exponent": _json_number(exponent(growth))} for growth in findings.growths]
    RESULTS.write_text(
        json.dumps(
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(seconds, 1),
                "machine": {
                    "cpus": os.cpu_count(),
                    "python": platform.python_version(),
                    "load": os.getloadavg(),
                },
                "lines": lines,
                "growth": growths,
                "foreign_cores": findings.foreign_cores,
                "problems": problems,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _json_number(value: float) -> float | None:
    return None if value != value else round(value, 3)
