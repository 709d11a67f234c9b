"""The states an execution can be in that somebody should know of: one definition each, for counts, lists and repairs (D3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.db.models.expressions import RawSQL

from copilot.queries import executions

ORPHANED_AFTER = timedelta(seconds=30)  # a worker that died is replaced well before
LONG = timedelta(hours=1)
WAITING_LONG = timedelta(hours=24)
STOP_OVERDUE = timedelta(seconds=5)  # then the sweep overrides the worker (T7.1)
STRANDED_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What conditions depend on besides the row: the time, and which running executions are not known to live."""

    now: datetime
    dead: frozenset[UUID] = field(default_factory=frozenset)
    unknown: frozenset[UUID] = field(default_factory=frozenset)

    def liveness(self, execution_id: UUID) -> executions.Liveness:
        """Of a running one."""
        if execution_id in self.dead:
            return "dead"
        return "unknown" if execution_id in self.unknown else "live"

    def evidence(self, execution_id: UUID, started_at: datetime | None) -> str | None:
        """Why a running one is orphaned; None when it is not."""
        age = self.now - (started_at or self.now)
        if execution_id in self.dead:
            return "beat" if age > ORPHANED_AFTER else None
        return "age" if execution_id in self.unknown and age > _orphan_age() else None


def judged(now: datetime, *, one: UUID | None = None) -> Moment:
    """All running executions, or one of them, by the evidence of D2."""
    verdicts = executions.judge_in_time(executions.suspects(one=one, most=None))
    return Moment(
        now=now,
        dead=frozenset(UUID(turn_id) for turn_id, verdict in verdicts.items() if verdict == "dead"),
        unknown=frozenset(UUID(turn_id) for turn_id, verdict in verdicts.items() if verdict == "unknown"),
    )


def among(ids: Iterable[UUID]) -> Q:
    """One parameter however many there are: thousands may have died together."""
    return Q(pk__in=RawSQL("SELECT unnest(%s::uuid[])", [list(ids)]))


# --- by status ---------------------------------------------------------------------------------------


def running(moment: Moment) -> Q:
    return Q(status=executions.RUNNING)


def queued(moment: Moment) -> Q:
    return Q(status=executions.QUEUED)


def waiting(moment: Moment) -> Q:
    return Q(status=executions.WAITING)


# --- nobody runs them --------------------------------------------------------------------------------


def orphaned_by_beat(moment: Moment) -> Q:
    return running(moment) & among(moment.dead) & Q(started_at__lt=moment.now - ORPHANED_AFTER)


def orphaned_by_age(moment: Moment) -> Q:
    """Nobody could say whether it lives, for longer than any execution may run."""
    return running(moment) & among(moment.unknown) & Q(started_at__lt=moment.now - _orphan_age())


def orphaned_running(moment: Moment) -> Q:
    return orphaned_by_beat(moment) | orphaned_by_age(moment)


def orphaned_queued(moment: Moment) -> Q:
    return never_started(moment) & Q(created_at__lt=moment.now - _orphan_age())


def orphaned(moment: Moment) -> Q:
    return orphaned_running(moment) | orphaned_queued(moment)


def _orphan_age() -> timedelta:
    return timedelta(seconds=settings.DIAG_ORPHAN_AGE_SECONDS)


# --- too long ----------------------------------------------------------------------------------------


def _running_and_live(moment: Moment) -> Q:
    return running(moment) & ~among(moment.dead | moment.unknown)


def long_running(moment: Moment) -> Q:
    age = timedelta(seconds=settings.DIAG_LONG_RUNNING_SECONDS)
    return _running_and_live(moment) & Q(started_at__lt=moment.now - age)


def long_running_1h(moment: Moment) -> Q:
    return _running_and_live(moment) & Q(started_at__lt=moment.now - LONG)


def never_started(moment: Moment) -> Q:
    """Nobody took them; those that wait for a cap of their user or address are no matter for repair."""
    return queued(moment) & Q(attempts=0, throttle="")


def stuck_queued(moment: Moment) -> Q:
    age = timedelta(seconds=settings.DIAG_STUCK_QUEUED_SECONDS)
    too_old = Q(created_at__lt=moment.now - _orphan_age())
    return never_started(moment) & Q(queued_at__lt=moment.now - age) & ~too_old


def waiting_old(moment: Moment) -> Q:
    """Since it pauses; of rows from before that was noted, since it started."""
    before = moment.now - WAITING_LONG
    return waiting(moment) & (Q(paused_at__lt=before) | Q(paused_at=None, started_at__lt=before))


def cancel_backlog(moment: Moment) -> Q:
    return executions.STILL_OPEN & Q(stop_requested_at__lt=moment.now - STOP_OVERDUE)


# --- rows that contradict themselves -----------------------------------------------------------------


INVALID: Mapping[str, tuple[Q, str]] = {
    "queued_started_without_attempt": (
        Q(status=executions.QUEUED, started_at__isnull=False, attempts=0),
        "It is queued and has a start, but no attempt was counted.",
    ),
    "queued_attempted_without_start": (
        Q(status=executions.QUEUED, started_at=None, attempts__gt=0),
        "It is queued after an attempt that has no start.",
    ),
    "running_without_start": (Q(status=executions.RUNNING, started_at=None), "It runs and never started."),
    "waiting_without_start": (
        Q(status=executions.WAITING, started_at=None),
        "It waits for a person and never started.",
    ),
    "ended_without_end": (
        Q(status__in=[status.value for status in executions.ENDINGS], ended_at=None),
        "It has ended, but not when.",
    ),
    "unended_with_end": (
        executions.STILL_OPEN & Q(ended_at__isnull=False),
        "It has the time of an end, and has not ended.",
    ),
}


def invalid(moment: Moment) -> Q:
    any_kind = Q(pk__in=[])
    for kind, _ in INVALID.values():
        any_kind |= kind
    return any_kind


# --- by how they ended -------------------------------------------------------------------------------


def ended_within(moment: Moment, window: timedelta) -> Q:
    """Half open: exactly at the window's edge counts, exactly now does not (D4)."""
    return Q(ended_at__gte=moment.now - window, ended_at__lt=moment.now)


def failed_within(moment: Moment, window: timedelta) -> Q:
    return Q(status=executions.FAILED) & ended_within(moment, window)


Condition = Callable[[Moment], Q]
CONDITIONS: Mapping[str, Condition] = {
    "running": running,
    "queued": queued,
    "waiting": waiting,
    "orphaned_running": orphaned_running,
    "orphaned_queued": orphaned_queued,
    "orphaned": orphaned,
    "long_running": long_running,
    "long_running_1h": long_running_1h,
    "stuck_queued": stuck_queued,
    "never_started": never_started,
    "invalid": invalid,
    "waiting_old": waiting_old,
    "cancel_backlog": cancel_backlog,
}
