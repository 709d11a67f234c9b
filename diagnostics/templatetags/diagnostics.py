"""Template filters of the dashboard: short ids, ages, times, and why something was skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()

AGE_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
SKIP_TEXTS = {
    "not_found": "does not exist",
    "not_stuck": "is no longer stuck",
    "not_orphaned": "is no longer orphaned",
    "still_live": "is alive: a worker is running it",
    "already_ended": "has ended in the meantime",
    "recently_requeued": "was sent to a worker less than a minute ago",
    "stop_pending": "was asked to stop and has not ended yet",
    "limit_refused": "is blocked by its owner's limit",
    "changed_meanwhile": "changed in the meantime",
}


@register.filter
def short(identifier: object) -> str:
    return str(identifier)[:8]


@register.filter
def words(name: object) -> str:
    return str(name).replace("_", " ")


@register.filter
def joined(value: object) -> object:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else value


def format_figure(name: str, number: float) -> tuple[str, str]:
    """Format a finding's number for people, such as: oldest 2 h, failure ratio 12.5 %."""
    for unit, formatter in UNIT_FORMATTERS.items():
        if unit in name:
            return words(name.replace(f"_{unit}", "")), formatter(number)
    return words(name), f"{number:,.0f}" if number == int(number) else f"{number:,.4g}"


@register.filter
def ticked(text: str) -> SafeString:
    """Render text between backticks as code."""
    parts = text.split("`")
    return format_html_join(
        "",
        "{}",
        ((format_html("<code>{}</code>", part) if place % 2 else part,) for place, part in enumerate(parts)),
    )


@register.filter
def dollars(microdollars: int) -> str:
    """Show dollars first, with the stored number beside them."""
    whole, rest = divmod(microdollars, 1_000_000)
    return f"${whole:,}.{rest:06d} ({microdollars:,})"


@register.filter
def age(seconds: float | None) -> str:
    """Format with two units at most, such as 3 d 4 h or 2 min 5 s."""
    if seconds is None:
        return "–"
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, unit in AGE_UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts) or "0 s"


UNIT_FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "seconds": age,
    "ms": lambda number: age(number / 1000) if number >= 120_000 else f"{number / 1000:.1f} s",
    "ratio": lambda number: f"{number * 100:.1f} %",
}


@register.filter
def percent(ratio: float) -> str:
    return UNIT_FORMATTERS["ratio"](ratio)


@register.filter
def skip_words(reason: str) -> str:
    """Describe a skip reason; unknown ones are shown as they are."""
    kind, _, detail = reason.partition(":")
    if kind == "wrong_status":
        return f"is {detail}"
    if kind == "error":
        return f"could not be changed: {detail.replace('_', ' ')}"
    return SKIP_TEXTS.get(kind, reason)


@register.simple_tag
def moment(when: datetime | str | None) -> SafeString | str:
    """Show a time in UTC; the page's script converts it to local time and keeps UTC at hand."""
    if not when:
        return "–"
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    utc = when.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{} UTC</time>',
        utc.isoformat(timespec="seconds"),
        f"{utc:%Y-%m-%d %H:%M:%S}",
        f"{utc:%Y-%m-%d %H:%M}",
    )
