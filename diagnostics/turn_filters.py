"""Define each noteworthy condition of an execution once, for counts, lists and repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.db.models.expressions import RawSQL

from copilot.chat import turn_selectors
from copilot.worker import liveness

ORPHANED_AFTER = timedelta(seconds=30)  # dead workers are replaced well before
LONG_RUNNING_AFTER = timedelta(hours=1)
WAITING_OLD_AFTER = timedelta(hours=24)
STOP_OVERDUE_AFTER = timedelta(seconds=5)  # then the sweep overrides the worker
STRANDED_AFTER_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class FilterContext:
    """The inputs of conditions besides the row: the time, and which running executions are dead or unknown."""

    now: datetime
    dead: frozenset[UUID] = field(default_factory=frozenset)
    unknown: frozenset[UUID] = field(default_factory=frozenset)

    def get_liveness(self, execution_id: UUID) -> liveness.Liveness:
        if execution_id in self.dead:
            return "dead"
        return "unknown" if execution_id in self.unknown else "live"

    def get_evidence(self, execution_id: UUID, started_at: datetime | None) -> str | None:
        """Return why a running execution is orphaned, or None if it is not."""
        age = self.now - (started_at or self.now)
        if execution_id in self.dead:
            return "beat" if age > ORPHANED_AFTER else None
        return "age" if execution_id in self.unknown and age > _get_orphan_age() else None


def judge_running_turns(now: datetime, *, one: UUID | None = None) -> FilterContext:
    """Judge the liveness of all running executions, or of one."""
    verdicts = liveness.judge_liveness_in_time(liveness.list_turn_evidence(turn_id=one, limit=None))
    return FilterContext(
        now=now,
        dead=frozenset(UUID(turn_id) for turn_id, verdict in verdicts.items() if verdict == "dead"),
        unknown=frozenset(UUID(turn_id) for turn_id, verdict in verdicts.items() if verdict == "unknown"),
    )


def filter_ids(ids: Iterable[UUID]) -> Q:
    """Filter by one array parameter, however many ids there are: thousands may have died together."""
    return Q(pk__in=RawSQL("SELECT unnest(%s::uuid[])", [list(ids)]))


# --- By status ---


def filter_running(moment: FilterContext) -> Q:
    return Q(status=turn_selectors.RUNNING)


def filter_queued(moment: FilterContext) -> Q:
    return Q(status=turn_selectors.QUEUED)


def filter_waiting(moment: FilterContext) -> Q:
    return Q(status=turn_selectors.WAITING)


# --- Orphaned ---


def filter_orphaned_by_heartbeat(moment: FilterContext) -> Q:
    return filter_running(moment) & filter_ids(moment.dead) & Q(started_at__lt=moment.now - ORPHANED_AFTER)


def filter_orphaned_by_age(moment: FilterContext) -> Q:
    """Match executions of unknown liveness that run longer than any execution may."""
    return (
        filter_running(moment) & filter_ids(moment.unknown) & Q(started_at__lt=moment.now - _get_orphan_age())
    )


def filter_orphaned_running(moment: FilterContext) -> Q:
    return filter_orphaned_by_heartbeat(moment) | filter_orphaned_by_age(moment)


def filter_orphaned_queued(moment: FilterContext) -> Q:
    return filter_never_started(moment) & Q(created_at__lt=moment.now - _get_orphan_age())


def filter_orphaned(moment: FilterContext) -> Q:
    return filter_orphaned_running(moment) | filter_orphaned_queued(moment)


def _get_orphan_age() -> timedelta:
    return timedelta(seconds=settings.DIAG_ORPHAN_AGE_SECONDS)


# --- Too long ---


def _filter_running_live(moment: FilterContext) -> Q:
    return filter_running(moment) & ~filter_ids(moment.dead | moment.unknown)


def filter_long_running(moment: FilterContext) -> Q:
    age = timedelta(seconds=settings.DIAG_LONG_RUNNING_SECONDS)
    return _filter_running_live(moment) & Q(started_at__lt=moment.now - age)


def filter_running_over_an_hour(moment: FilterContext) -> Q:
    return _filter_running_live(moment) & Q(started_at__lt=moment.now - LONG_RUNNING_AFTER)


def filter_never_started(moment: FilterContext) -> Q:
    """Match executions that no worker took, except those that wait for a cap of their user or address."""
    return filter_queued(moment) & Q(attempts=0, throttled_by="")


def filter_stuck_queued(moment: FilterContext) -> Q:
    age = timedelta(seconds=settings.DIAG_STUCK_QUEUED_SECONDS)
    too_old = Q(created_at__lt=moment.now - _get_orphan_age())
    return filter_never_started(moment) & Q(queued_at__lt=moment.now - age) & ~too_old


def filter_waiting_old(moment: FilterContext) -> Q:
    """Match by the time of the pause; older rows without it count from their start."""
    before = moment.now - WAITING_OLD_AFTER
    return filter_waiting(moment) & (Q(paused_at__lt=before) | Q(paused_at=None, started_at__lt=before))


def filter_stop_overdue(moment: FilterContext) -> Q:
    return turn_selectors.IS_UNFINISHED & Q(stop_requested_at__lt=moment.now - STOP_OVERDUE_AFTER)


# --- Invalid rows ---


INVALID_STATES: Mapping[str, tuple[Q, str]] = {
    "queued_started_without_attempt": (
        Q(status=turn_selectors.QUEUED, started_at__isnull=False, attempts=0),
        "It is queued and has a start time, but no attempt was counted.",
    ),
    "queued_attempted_without_start": (
        Q(status=turn_selectors.QUEUED, started_at=None, attempts__gt=0),
        "It is queued after an attempt without a start time.",
    ),
    "running_without_start": (
        Q(status=turn_selectors.RUNNING, started_at=None),
        "It is running, but has no start time.",
    ),
    "waiting_without_start": (
        Q(status=turn_selectors.WAITING, started_at=None),
        "It waits for a person, but has no start time.",
    ),
    "ended_without_end": (
        Q(status__in=[status.value for status in turn_selectors.ENDINGS], ended_at=None),
        "It has ended, but has no end time.",
    ),
    "unended_with_end": (
        turn_selectors.IS_UNFINISHED & Q(ended_at__isnull=False),
        "It has an end time, but has not ended.",
    ),
}


def filter_invalid(moment: FilterContext) -> Q:
    any_kind = Q(pk__in=[])
    for kind, _ in INVALID_STATES.values():
        any_kind |= kind
    return any_kind


# --- Ended ---


def filter_ended_within(moment: FilterContext, window: timedelta) -> Q:
    """Match a half-open window: its start counts, the present moment does not."""
    return Q(ended_at__gte=moment.now - window, ended_at__lt=moment.now)


def filter_failed_within(moment: FilterContext, window: timedelta) -> Q:
    return Q(status=turn_selectors.FAILED) & filter_ended_within(moment, window)


TurnFilter = Callable[[FilterContext], Q]
TURN_FILTERS: Mapping[str, TurnFilter] = {
    "running": filter_running,
    "queued": filter_queued,
    "waiting": filter_waiting,
    "orphaned_running": filter_orphaned_running,
    "orphaned_queued": filter_orphaned_queued,
    "orphaned": filter_orphaned,
    "long_running": filter_long_running,
    "long_running_1h": filter_running_over_an_hour,
    "stuck_queued": filter_stuck_queued,
    "never_started": filter_never_started,
    "invalid": filter_invalid,
    "waiting_old": filter_waiting_old,
    "cancel_backlog": filter_stop_overdue,
}
