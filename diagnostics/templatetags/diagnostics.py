"""Words of the dashboard's pages: short ids, ages, moments, and why something was left alone (D13)."""

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
    "not_stuck": "is not stuck any more",
    "not_orphaned": "is not orphaned any more",
    "still_live": "is alive: a worker runs it",
    "already_ended": "has ended meanwhile",
    "recently_requeued": "was sent to a worker less than a minute ago",
    "stop_pending": "was told to stop and has not ended yet",
    "limit_refused": "its owner's limit refuses it",
    "changed_meanwhile": "changed meanwhile",
}


@register.filter
def short(identifier: object) -> str:
    return str(identifier)[:8]


@register.filter
def words(name: object) -> str:
    return str(name).replace("_", " ")


@register.filter
def joined(value: object) -> object:
    """A list as people write one."""
    return ", ".join(str(one) for one in value) if isinstance(value, list) else value


def format_figure(name: str, number: float) -> tuple[str, str]:
    """A finding's number as people say it: oldest 2 h, failure ratio 12.5 %."""
    for unit, said in UNIT_FORMATTERS.items():
        if unit in name:
            return words(name.replace(f"_{unit}", "")), said(number)
    return words(name), f"{number:,.0f}" if number == int(number) else f"{number:,.4g}"


@register.filter
def ticked(text: str) -> SafeString:
    """What stands between backticks is code."""
    parts = text.split("`")
    return format_html_join(
        "",
        "{}",
        ((format_html("<code>{}</code>", part) if place % 2 else part,) for place, part in enumerate(parts)),
    )


@register.filter
def dollars(microdollars: int) -> str:
    """For people first, the stored number beside it."""
    whole, rest = divmod(microdollars, 1_000_000)
    return f"${whole:,}.{rest:06d} ({microdollars:,})"


@register.filter
def age(seconds: float | None) -> str:
    """Two units at most: 3 d 4 h, 2 min 5 s."""
    if seconds is None:
        return "–"
    left = max(0, int(seconds))
    told: list[str] = []
    for size, unit in AGE_UNITS:
        if left >= size and len(told) < 2:
            told.append(f"{left // size} {unit}")
            left %= size
        elif told:
            break
    return " ".join(told) or "0 s"


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
    """The wire's reason in words; what is not known is shown as it is."""
    kind, _, detail = reason.partition(":")
    if kind == "wrong_status":
        return f"is {detail}"
    if kind == "error":
        return f"could not be changed: {detail.replace('_', ' ')}"
    return SKIP_TEXTS.get(kind, reason)


@register.simple_tag
def moment(when: datetime | str | None) -> SafeString | str:
    """In UTC; the page's script says it in the reader's own time and keeps UTC at hand."""
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
