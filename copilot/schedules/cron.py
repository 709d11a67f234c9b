"""When a task runs by the clock: cron lines of five fields in a time zone (A26.1, A26.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from config.core.errors import InvalidRequest
from config.core.time_zones import find_time_zone

MIN_INTERVAL_MINUTES = 15
CRON_FIELDS = 5


@dataclass(frozen=True, kw_only=True)
class CronExpression:
    """A line that has been read. Names of fixed times follow the clock on the wall, intervals the time that passes."""

    line: str
    zone: ZoneInfo

    def iter_after(self, moment: datetime) -> Iterator[datetime]:
        """The moments after this one, each once: a skipped time comes at the next minute there is (A26.3)."""
        last = moment
        for local in CronSim(self.line, moment.astimezone(self.zone)):
            due = local.astimezone(UTC)
            if due > last:  # else an hour that is told twice, or two skipped times that meet
                yield due
                last = due

    def next_after(self, moment: datetime) -> datetime | None:
        return next(self.iter_after(moment), None)

    def format_next(self, moment: datetime, count: int) -> list[str]:
        """The next moments on the clock of the zone, for people and models."""
        coming = islice(self.iter_after(moment), count)
        return [due.astimezone(self.zone).isoformat(timespec="minutes") for due in coming]


def parse_cron(line: str, timezone: str) -> CronExpression:
    """Refuses what never runs, runs too often, or names no zone."""
    line = " ".join(line.split())
    cron = CronExpression(line=line, zone=_get_zone(timezone))
    try:
        if len(line.split()) != CRON_FIELDS:
            raise CronSimError("Wrong number of fields")
        sim = CronSim(line, datetime.now(UTC))
    except CronSimError as problem:
        raise InvalidRequest(
            f"That is not a cron line of {CRON_FIELDS} fields (minute hour day month weekday): {problem}.",
            code="invalid_cron",
        ) from problem
    if _smallest_gap_minutes(sim) < MIN_INTERVAL_MINUTES:
        raise InvalidRequest(
            f"A task runs at most every {MIN_INTERVAL_MINUTES} minutes.", code="interval_too_small"
        )
    if cron.next_after(datetime.now(UTC)) is None:
        raise InvalidRequest("That moment never comes.", code="invalid_cron")
    return cron


def _smallest_gap_minutes(sim: CronSim) -> int:
    """In minutes, of two runs in one hour, or in two hours that follow each other."""
    minutes = sorted(sim.minutes)
    gaps = [later - earlier for earlier, later in pairwise(minutes)]
    if any((hour + 1) % 24 in sim.hours for hour in sim.hours):
        gaps.append(60 - minutes[-1] + minutes[0])
    return min(gaps, default=60)


def _get_zone(name: str) -> ZoneInfo:
    zone = find_time_zone(name)
    if zone is None:
        raise InvalidRequest(
            "There is no such time zone; use a name like Europe/Berlin.", code="invalid_timezone"
        )
    return zone
