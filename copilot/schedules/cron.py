"""Parse five-field cron expressions with a time zone, and compute when they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from config.core.errors import InvalidRequest
from config.core.text import find_time_zone

MIN_INTERVAL_MINUTES = 15
CRON_FIELDS = 5


@dataclass(frozen=True, kw_only=True)
class CronExpression:
    """A parsed expression. Fixed times follow local time, intervals follow elapsed time."""

    line: str
    zone: ZoneInfo

    def iter_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the due times after this one. A time skipped by a clock change runs at the next existing minute."""
        last = moment
        for local in CronSim(self.line, moment.astimezone(self.zone)):
            due = local.astimezone(UTC)
            if due > last:  # False in a repeated hour, or when two skipped times coincide
                yield due
                last = due

    def next_after(self, moment: datetime) -> datetime | None:
        return next(self.iter_after(moment), None)

    def format_next(self, moment: datetime, count: int) -> list[str]:
        coming = islice(self.iter_after(moment), count)
        return [due.astimezone(self.zone).isoformat(timespec="minutes") for due in coming]


def parse_cron(line: str, timezone: str) -> CronExpression:
    """Parse an expression. Refuse one that never runs, runs too often, or has an unknown zone."""
    line = " ".join(line.split())
    cron = CronExpression(line=line, zone=_get_zone(timezone))
    try:
        if len(line.split()) != CRON_FIELDS:
            raise CronSimError("Wrong number of fields")
        sim = CronSim(line, datetime.now(UTC))
    except CronSimError as problem:
        raise InvalidRequest(
            f"Use {CRON_FIELDS} fields: minute hour day month weekday, e.g. 30 8 * * 1-5 ({problem}).",
            code="invalid_cron",
            field="cron",
        ) from problem
    if _smallest_gap_minutes(sim) < MIN_INTERVAL_MINUTES:
        raise InvalidRequest(
            f"Tasks can run at most every {MIN_INTERVAL_MINUTES} minutes.",
            code="interval_too_small",
            field="cron",
        )
    if cron.next_after(datetime.now(UTC)) is None:
        raise InvalidRequest("This schedule would never run.", code="invalid_cron", field="cron")
    return cron


def _smallest_gap_minutes(sim: CronSim) -> int:
    """Return the smallest gap between runs in one hour or in two consecutive hours."""
    minutes = sorted(sim.minutes)
    gaps = [later - earlier for earlier, later in pairwise(minutes)]
    if any((hour + 1) % 24 in sim.hours for hour in sim.hours):
        gaps.append(60 - minutes[-1] + minutes[0])
    return min(gaps, default=60)


def _get_zone(name: str) -> ZoneInfo:
    zone = find_time_zone(name)
    if zone is None:
        raise InvalidRequest(
            "That time zone doesn't exist. Use a name like Europe/Berlin.",
            code="invalid_timezone",
            field="timezone",
        )
    return zone
