"""When a task runs by the clock: cron lines of five fields in a time zone (A26.1, A26.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from config.core.zones import find_zone
from copilot.errors import InvalidRequest

SMALLEST_MINUTES = 15
FIELDS = 5


@dataclass(frozen=True, kw_only=True)
class Cron:
    """A line that has been read. Names of fixed times follow the clock on the wall, intervals the time that passes."""

    line: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The moments after this one, each once: a skipped time comes at the next minute there is (A26.3)."""
        last = moment
        for local in CronSim(self.line, moment.astimezone(self.zone)):
            due = local.astimezone(UTC)
            if due > last:  # else an hour that is told twice, or two skipped times that meet
                yield due
                last = due

    def next(self, moment: datetime) -> datetime | None:
        return next(self.after(moment), None)

    def shown(self, moment: datetime, count: int) -> list[str]:
        """The next moments on the clock of the zone, for people and models."""
        coming = islice(self.after(moment), count)
        return [due.astimezone(self.zone).isoformat(timespec="minutes") for due in coming]


def read(line: str, timezone: str) -> Cron:
    """Refuses what never runs, runs too often, or names no zone."""
    line = " ".join(line.split())
    cron = Cron(line=line, zone=_zone(timezone))
    try:
        if len(line.split()) != FIELDS:
            raise CronSimError("Wrong number of fields")
        sim = CronSim(line, datetime.now(UTC))
    except CronSimError as problem:
        raise InvalidRequest(
            f"That is not a cron line of {FIELDS} fields (minute hour day month weekday): {problem}.",
            code="invalid_cron",
        ) from problem
    if _smallest_gap(sim) < SMALLEST_MINUTES:
        raise InvalidRequest(
            f"A task runs at most every {SMALLEST_MINUTES} minutes.", code="interval_too_small"
        )
    if cron.next(datetime.now(UTC)) is None:
        raise InvalidRequest("That moment never comes.", code="invalid_cron")
    return cron


def _smallest_gap(sim: CronSim) -> int:
    """In minutes, of two runs in one hour, or in two hours that follow each other."""
    minutes = sorted(sim.minutes)
    gaps = [later - earlier for earlier, later in pairwise(minutes)]
    if any((hour + 1) % 24 in sim.hours for hour in sim.hours):
        gaps.append(60 - minutes[-1] + minutes[0])
    return min(gaps, default=60)


def _zone(name: str) -> ZoneInfo:
    zone = find_zone(name)
    if zone is None:
        raise InvalidRequest(
            "There is no such time zone; use a name like Europe/Berlin.", code="invalid_timezone"
        )
    return zone
