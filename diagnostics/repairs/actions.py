"""Repair actions: which targets they change, how, and why one is skipped."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import Error, connection
from django.db.models import Q

from billing import errors
from billing.usage import limit_checks
from copilot.chat import stop, turn_selectors
from copilot.schedules import selectors as schedules_selectors
from copilot.worker import recovery
from diagnostics import aggregates, queries, turn_filters
from diagnostics.audit import TargetState
from diagnostics.repairs.requests import RepairBatch, SkipReasons, TargetStates
from diagnostics.turn_filters import TURN_FILTERS, FilterContext

log = structlog.get_logger(__name__)

REQUEUE_COOLDOWN = timedelta(seconds=60)
POLL_SECONDS = 0.1
OVERRIDE_AFTER_SECONDS = 5.0  # after this, a stop that has no effect is overridden


class RepairAction(ABC):
    """One kind of repair."""

    takes_ids: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        """Return the oldest targets of a repair of all, and their total number."""

    @abstractmethod
    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        """Return the reason against changing each id, without changing anything."""

    def perform(self, batch: RepairBatch) -> SkipReasons:
        """Change what may be changed; return the reasons for the rest."""
        reasons = dict(self.find_objections(batch))
        for one in batch.ids:
            if one in reasons:
                continue
            if time.monotonic() > batch.deadline:
                reasons[one] = "error:timeout"
            elif (reason := try_change(self.change_one, one, batch)) is not None:
                reasons[one] = reason
        return reasons

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        """Change one target that has no objection; return why it was skipped after all, or None."""
        raise NotImplementedError

    @abstractmethod
    def load_states(self, ids: Sequence[UUID]) -> TargetStates: ...

    def find_touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Return ids that a change of these may change as well."""
        return ()


class ExecutionAction(RepairAction):
    """Judge each id by its row and condition, and again in the update that changes it."""

    condition: ClassVar[str] = ""  # the condition that the repair is for

    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        with queries.open_snapshot() as now:
            rows = turn_selectors.all_turns().filter(
                TURN_FILTERS[self.condition](turn_filters.judge_running_turns(now))
            )
            return list(rows.order_by("created_at", "pk").values_list("pk", flat=True)[:most]), rows.count()

    def load_states(self, ids: Sequence[UUID]) -> TargetStates:
        return {
            row_id: TargetState(status=status, fence=fence)
            for row_id, status, fence in turn_selectors.list_turn_states(ids)
        }

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        with queries.open_snapshot() as now:
            moment = turn_filters.judge_running_turns(now)
            rows = {
                row.id: row for row in turn_selectors.describe_turns(turn_selectors.turns_by_id(batch.ids))
            }
            matching = self._filter_matching(batch.ids, moment)
            found = {
                one: self._get_reason(rows.get(one), moment, one in matching, batch) for one in batch.ids
            }
        return {one: reason for one, reason in found.items() if reason is not None}

    def _filter_matching(self, ids: Sequence[UUID], moment: FilterContext) -> set[UUID]:
        """Return the ids that are in the repair's condition."""
        if not self.condition:
            return set(ids)
        rows = turn_selectors.turns_by_id(ids).filter(TURN_FILTERS[self.condition](moment))
        return set(rows.values_list("pk", flat=True))

    def _get_reason(
        self,
        row: turn_selectors.TurnOverview | None,
        moment: FilterContext,
        is_match: bool,
        batch: RepairBatch,
    ) -> str | None:
        if row is None:
            return "not_found"
        if row.ended_at is not None and batch.previewed:
            return "already_ended"
        return self.get_objection(row, moment, is_match)

    @abstractmethod
    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, is_match: bool
    ) -> str | None:
        """Return why this row is skipped, or None."""

    def _explain_change(self, one: UUID, batch: RepairBatch) -> str:
        """Explain why the update found something other than expected."""
        again = RepairBatch(
            ids=[one], previewed=batch.previewed, deadline=batch.deadline, now=batch.now, reason=batch.reason
        )
        return self.find_objections(again).get(one, "changed_meanwhile")


def try_change(
    change: Callable[[UUID, RepairBatch], str | None], one: UUID, batch: RepairBatch
) -> str | None:
    """Change one target, so that a failure does not affect the others."""
    try:
        return change(one, batch)
    except Error as problem:
        log.warning("repair_failed", execution_id=str(one), error=type(problem).__name__)
        connection.close_if_unusable_or_obsolete()
        return "error:database"
    except recovery.SWEEP_OUTAGE_ERRORS:
        return "error:redis"
    except Exception:
        log.exception("repair_failed", execution_id=str(one))
        return "error:internal"


# --- Stop ---


class StopAction(ExecutionAction):
    """Stop a turn with its owner's rights; queued messages stay, and sub-sessions end too."""

    takes_ids = True

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, is_match: bool
    ) -> str | None:
        if row.ended_at is not None:
            return "already_ended"
        return None if is_match else "changed_meanwhile"

    def find_touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        return turn_selectors.list_unfinished_descendants(ids)

    def perform(self, batch: RepairBatch) -> SkipReasons:
        reasons = dict(self.find_objections(batch))
        ours: set[UUID] = set()  # stops that were first requested here, so that only one call counts them
        for one in batch.ids:
            if one in reasons:
                continue
            if time.monotonic() > batch.deadline:
                reasons[one] = "error:timeout"
            elif (reason := try_change(self._make_stop_request(ours), one, batch)) is not None:
                reasons[one] = "stop_pending" if reason == "error:database" else reason
        asked = [one for one in batch.ids if one not in reasons]
        deadline = min(batch.deadline, time.monotonic() + settings.DIAG_STOP_WAIT_SECONDS)
        ended = self._wait_until_ended(asked, deadline, ours)
        for one in asked:
            if ended.get(one) != turn_selectors.CANCELLED:
                reasons[one] = "already_ended" if one in ended else "stop_pending"
            elif one not in ours:
                reasons[one] = "already_ended"
        return reasons

    def _make_stop_request(self, ours: set[UUID]) -> Callable[[UUID, RepairBatch], str | None]:
        def ask(one: UUID, batch: RepairBatch) -> str | None:
            stopping = stop.stop_turn_as_staff(one)
            if stopping is None:
                return "already_ended"
            if stopping.is_first:
                ours.add(one)
            return None

        return ask

    def _wait_until_ended(self, asked: Sequence[UUID], deadline: float, ours: set[UUID]) -> dict[UUID, str]:
        """Wait once for all of them; override those that have not ended after five seconds."""
        began = time.monotonic()
        while True:
            try:
                status = {one: status for one, status, _ in turn_selectors.list_turn_states(asked)}
                ended = {one: name for one, name in status.items() if name in turn_selectors.ENDINGS}
                if len(ended) == len(status) or time.monotonic() > deadline:
                    return ended
                if time.monotonic() - began > OVERRIDE_AFTER_SECONDS:
                    ours.update(one for one in status if one not in ended and self._override_stop(one))
            except Error:
                connection.close_if_unusable_or_obsolete()
                if time.monotonic() > deadline:
                    return {}
            time.sleep(POLL_SECONDS)

    def _override_stop(self, one: UUID) -> bool:
        try:
            return recovery.override_stop_of_turn(one)
        except (Error, *recovery.SWEEP_OUTAGE_ERRORS):
            return False


class StopAllLongRunningAction(StopAction):
    takes_ids, takes_all = False, True
    condition = "long_running"


# --- Requeue ---


class RequeueAction(ExecutionAction):
    """Publish the job once more; if two copies arrive, only one runs."""

    takes_ids = True

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, is_match: bool
    ) -> str | None:
        if row.status != turn_selectors.QUEUED:
            return f"wrong_status:{row.status}"
        if row.stop_requested_at is not None:
            return "stop_pending"
        if not is_match:
            return "not_stuck"
        if (row.dispatched_at or row.queued_at) > moment.now - REQUEUE_COOLDOWN:
            return "recently_requeued"
        return None

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        """Check limits outside the snapshot of the rows, because billing may have to write."""
        reasons = dict(super().find_objections(batch))
        owners = turn_selectors.get_turn_owner_ids(one for one in batch.ids if one not in reasons)
        refused = {owner for owner in set(owners.values()) if _is_over_limit(owner)}
        return reasons | {one: "limit_refused" for one, owner in owners.items() if owner in refused}

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        now = queries.get_database_time()
        guard = Q(stop_requested_at=None) & (
            Q(dispatched_at__lte=now - REQUEUE_COOLDOWN)
            | Q(dispatched_at=None, queued_at__lte=now - REQUEUE_COOLDOWN)
        )
        if self.condition:
            guard &= TURN_FILTERS[self.condition](FilterContext(now=now))
        return None if recovery.resend_turn_as_staff(one, guard) else self._explain_change(one, batch)


def _is_over_limit(user_id: int) -> bool:
    """Tell whether the owner is over a limit, which would only be refused at the start. The worker checks again."""
    try:
        limit_checks.check_limits(user_id)
    except errors.LimitReached:
        return True
    return False


class RequeueAllStuckAction(RequeueAction):
    takes_ids, takes_all = False, True
    condition = "stuck_queued"


# --- Clean up ---


class CleanUpOrphanedAction(ExecutionAction):
    """Raise the fence and fail the execution once, so that a former owner can write no more."""

    takes_ids = True
    condition = "orphaned"

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, is_match: bool
    ) -> str | None:
        if row.status not in (turn_selectors.RUNNING, turn_selectors.QUEUED):
            return f"wrong_status:{row.status}"
        if is_match:
            return None
        live = row.status == turn_selectors.RUNNING and moment.get_liveness(row.id) == "live"
        return "still_live" if live else "not_orphaned"

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        moment = turn_filters.judge_running_turns(queries.get_database_time(), one=one)
        if recovery.fail_turn_as_staff(one, turn_filters.filter_orphaned_running(moment), "worker_lost"):
            return None
        if recovery.fail_turn_as_staff(one, turn_filters.filter_orphaned_queued(moment), "never_started"):
            return None
        return self._explain_change(one, batch)


class CleanUpAllOrphanedAction(CleanUpOrphanedAction):
    takes_ids, takes_all = False, True


class CleanUpAllStuckQueuedAction(ExecutionAction):
    takes_all = True
    condition = "stuck_queued"

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, is_match: bool
    ) -> str | None:
        if row.status != turn_selectors.QUEUED:
            return f"wrong_status:{row.status}"
        return None if is_match else "not_stuck"

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        guard = turn_filters.filter_stuck_queued(FilterContext(now=queries.get_database_time()))
        return (
            None
            if recovery.fail_turn_as_staff(one, guard, "never_started")
            else self._explain_change(one, batch)
        )


# --- Schedules ---

DISABLED_REASON_PREFIX = "Switched off: "


class CleanUpOrphanedSchedulesAction(RepairAction):
    """Switch off orphaned schedules with the reason; valid ones and those of the system are not touched."""

    takes_ids = takes_all = True

    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        found = [schedule.pk for schedule, _ in schedules_selectors.iter_orphans()]
        return found[:most], len(found)

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        found = schedules_selectors.get_schedules_by_id(list(batch.ids))
        return {
            one: "not_orphaned" if one in found else "not_found"
            for one in batch.ids
            if one not in found
            or found[one].next_run is None
            or schedules_selectors.find_orphan(found[one]) is None
        }

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        """Judge again just before, and update only while the schedule is on."""
        schedule = schedules_selectors.get_schedules_by_id([one]).get(one)
        orphan = schedules_selectors.find_orphan(schedule) if schedule is not None else None
        if schedule is None or orphan is None:
            return "not_orphaned"
        off = recovery.disable_schedule_as_staff(
            schedule, f"{DISABLED_REASON_PREFIX}{orphan.detail or orphan.reason}"
        )
        return None if off else "changed_meanwhile"

    def load_states(self, ids: Sequence[UUID]) -> TargetStates:
        found = schedules_selectors.get_schedules_by_id(list(ids))
        return {
            one: TargetState(status="off" if schedule.next_run is None else "on", fence=0)
            for one, schedule in found.items()
        }


# --- Stranded messages ---


class StartStrandedAction(RepairAction):
    """Start turns in stranded sessions; skip those that are running or whose owner is at a limit."""

    takes_ids = True

    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        found = sorted(aggregates.find_stranded_sessions())
        return found[:most], len(found)

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        with queries.open_snapshot():
            known = turn_selectors.get_session_owner_ids(list(batch.ids))
            waiting, free = _find_waiting_sessions(), set(aggregates.find_stranded_sessions())
        return {one: _explain_skip(one, known, waiting) for one in batch.ids if one not in free}

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        """Start the turn. If two try at once, the lease lets only one do it."""
        if one not in _find_waiting_sessions() or not recovery.start_stranded_session(one):
            return "changed_meanwhile"
        return "limit_refused" if one in _find_waiting_sessions() else None  # or its owner is suspended

    def load_states(self, ids: Sequence[UUID]) -> TargetStates:
        waiting = _find_waiting_sessions()
        return {
            one: TargetState(status="stranded" if one in waiting else "started", fence=0)
            for one in turn_selectors.get_session_owner_ids(list(ids))
        }


def _find_waiting_sessions() -> set[UUID]:
    """Return stranded sessions, including those that a limit holds back."""
    return set(turn_selectors.list_stranded_sessions(seconds=turn_filters.STRANDED_AFTER_SECONDS))


def _explain_skip(one: UUID, known: dict[UUID, int], waiting: set[UUID]) -> str:
    if one not in known:
        return "not_found"
    return "limit_refused" if one in waiting else "not_stuck"
