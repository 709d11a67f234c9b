"""Translate between cron expressions and what people choose: every day, on weekdays, weekly or monthly at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from typing import Literal

from django.utils.dateformat import time_format
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext as _

Repeat = Literal["daily", "weekdays", "weekly", "monthly"]
LAST_DAY = "L"
MAX_MONTH_DAY = 28  # later days are missing in some months; the last one is a choice of its own


@dataclass(frozen=True, kw_only=True)
class SchedulePattern:
    """A choice of the picker. `weekdays` counts from 1 for Monday to 7 for Sunday."""

    repeat: Repeat
    at: time
    weekdays: tuple[int, ...] = ()
    month_day: str = "1"

    def to_cron(self) -> str:
        clock = f"{self.at.minute} {self.at.hour}"
        match self.repeat:
            case "daily":
                return f"{clock} * * *"
            case "weekdays":
                return f"{clock} * * 1-5"
            case "weekly":
                return f"{clock} * * {','.join(str(day) for day in sorted(self.weekdays))}"
            case "monthly":
                return f"{clock} {self.month_day} * *"

    def describe(self) -> str:
        at = time_format(self.at, _("g:i A"))
        match self.repeat:
            case "daily":
                return _("Every day at %(time)s") % {"time": at}
            case "weekdays":
                return _("Every weekday at %(time)s") % {"time": at}
            case "weekly":
                days = ", ".join(str(WEEKDAYS[day - 1]) for day in sorted(self.weekdays))
                return _("Every %(days)s at %(time)s") % {"days": days, "time": at}
            case "monthly" if self.month_day == LAST_DAY:
                return _("On the last day of every month at %(time)s") % {"time": at}
            case "monthly":
                return _("On day %(day)s of every month at %(time)s") % {"day": self.month_day, "time": at}


def parse_pattern(line: str) -> SchedulePattern | None:
    """Read a five-field expression back as a choice of the picker; None for anything else."""
    fields = line.split()
    if len(fields) != 5 or fields[3] != "*" or not (_is_number(fields[0]) and _is_number(fields[1])):
        return None
    minute, hour, month_day, _month, weekday = fields
    if int(minute) > 59 or int(hour) > 23:
        return None
    at = time(int(hour), int(minute))
    if month_day != "*":
        is_known = month_day == LAST_DAY or (_is_number(month_day) and 1 <= int(month_day) <= MAX_MONTH_DAY)
        return (
            SchedulePattern(repeat="monthly", at=at, month_day=month_day)
            if weekday == "*" and is_known
            else None
        )
    if weekday == "*":
        return SchedulePattern(repeat="daily", at=at)
    if weekday in ("1-5", "1,2,3,4,5"):
        return SchedulePattern(repeat="weekdays", at=at)
    days = weekday.split(",")
    if not all(_is_number(day) and int(day) <= 7 for day in days):
        return None
    numbers = tuple(sorted({int(day) or 7 for day in days}))  # cron counts Sunday as 0 and as 7
    return SchedulePattern(repeat="weekly", at=at, weekdays=numbers)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2
