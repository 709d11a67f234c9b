"""What may be done to executions, to which of them, and why one is left alone (D9)."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from django.conf import settings
from django.db import Error, connection
from django.db.models import Q

from billing import errors
from billing.usage import limit_checks
from copilot.chat import stop, turn_selectors
from copilot.schedules import selectors as schedules_selectors
from copilot.worker import recovery
from diagnostics import aggregates, snapshot_transaction, turn_filters
from diagnostics.audit import TargetState
from diagnostics.repairs.requests import RepairBatch, SkipReasons, TargetStates
from diagnostics.turn_filters import TURN_FILTERS, FilterContext

log = logging.getLogger(__name__)

REQUEUE_COOLDOWN = timedelta(seconds=60)
POLL_SECONDS = 0.1
OVERRIDE_AFTER_SECONDS = 5.0  # of a stop that is not obeyed (T7.1)


class RepairAction(ABC):
    """One line of D9's table."""

    takes_ids: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        """Of a repair of all: the oldest, and how many there are."""

    @abstractmethod
    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        """What speaks against changing each, without changing anything."""

    def perform(self, batch: RepairBatch) -> SkipReasons:
        """Change what may be changed; the reasons of the rest."""
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
        """One that nothing speaks against; why it was left alone after all, or None."""
        raise NotImplementedError

    @abstractmethod
    def load_states(self, ids: Sequence[UUID]) -> TargetStates: ...

    def find_touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """What a change of these may change besides."""
        return ()


class ExecutionAction(RepairAction):
    """Each id is judged by the row and the condition, and again by the update that changes it."""

    condition: ClassVar[str] = ""  # of D3: what the repair is for

    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        with snapshot_transaction.open_snapshot() as now:
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
        with snapshot_transaction.open_snapshot() as now:
            moment = turn_filters.judge_running_turns(now)
            rows = {
                row.id: row for row in turn_selectors.describe_turns(turn_selectors.turns_by_id(batch.ids))
            }
            meant = self._filter_matching(batch.ids, moment)
            found = {one: self._get_reason(rows.get(one), moment, one in meant, batch) for one in batch.ids}
        return {one: reason for one, reason in found.items() if reason is not None}

    def _filter_matching(self, ids: Sequence[UUID], moment: FilterContext) -> set[UUID]:
        """Those that are in the condition which the repair is for."""
        if not self.condition:
            return set(ids)
        rows = turn_selectors.turns_by_id(ids).filter(TURN_FILTERS[self.condition](moment))
        return set(rows.values_list("pk", flat=True))

    def _get_reason(
        self, row: turn_selectors.TurnOverview | None, moment: FilterContext, meant: bool, batch: RepairBatch
    ) -> str | None:
        if row is None:
            return "not_found"
        if row.ended_at is not None and batch.previewed:
            return "already_ended"
        return self.get_objection(row, moment, meant)

    @abstractmethod
    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, meant: bool
    ) -> str | None:
        """Why this row is left alone, or None."""

    def _explain_change(self, one: UUID, batch: RepairBatch) -> str:
        """It was to be changed, and the update found something else."""
        again = RepairBatch(
            ids=[one], previewed=batch.previewed, deadline=batch.deadline, now=batch.now, reason=batch.reason
        )
        return self.find_objections(again).get(one, "changed_meanwhile")


def try_change(
    change: Callable[[UUID, RepairBatch], str | None], one: UUID, batch: RepairBatch
) -> str | None:
    """One that fails keeps no other waiting (D8)."""
    try:
        return change(one, batch)
    except Error as problem:
        log.warning("execution %s could not be repaired: %s", one, type(problem).__name__)
        connection.close_if_unusable_or_obsolete()
        return "error:database"
    except recovery.SWEEP_OUTAGE_ERRORS:
        return "error:redis"
    except Exception:
        log.exception("execution %s could not be repaired", one)
        return "error:internal"


# --- stop --------------------------------------------------------------------------------------------


class StopAction(ExecutionAction):
    """The ordinary stop, with the owner's rights; queued messages stay, children end too (T7)."""

    takes_ids = True

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, meant: bool
    ) -> str | None:
        if row.ended_at is not None:
            return "already_ended"
        return None if meant else "changed_meanwhile"

    def find_touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        return turn_selectors.list_unfinished_descendants(ids)

    def perform(self, batch: RepairBatch) -> SkipReasons:
        reasons = dict(self.find_objections(batch))
        ours: set[UUID] = set()  # whose stop was asked for here first, so that one call alone counts it
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
        """One wait for all of them; who has not obeyed after five seconds is overridden here, whatever the sweep does."""
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


# --- requeue -----------------------------------------------------------------------------------------


class RequeueAction(ExecutionAction):
    """The job is published once more; of two copies one runs and the other leaves (T5.1)."""

    takes_ids = True

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, meant: bool
    ) -> str | None:
        if row.status != turn_selectors.QUEUED:
            return f"wrong_status:{row.status}"
        if row.stop_requested_at is not None:
            return "stop_pending"
        if not meant:
            return "not_stuck"
        if (row.dispatched_at or row.queued_at) > moment.now - REQUEUE_COOLDOWN:
            return "recently_requeued"
        return None

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        """Limits are asked for outside the look at the rows: billing may have something to write down."""
        reasons = dict(super().find_objections(batch))
        owners = turn_selectors.get_turn_owner_ids(one for one in batch.ids if one not in reasons)
        refused = {owner for owner in set(owners.values()) if _is_over_limit(owner)}
        return reasons | {one: "limit_refused" for one, owner in owners.items() if owner in refused}

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        now = snapshot_transaction.get_database_time()
        guard = Q(stop_requested_at=None) & (
            Q(dispatched_at__lte=now - REQUEUE_COOLDOWN)
            | Q(dispatched_at=None, queued_at__lte=now - REQUEUE_COOLDOWN)
        )
        if self.condition:
            guard &= TURN_FILTERS[self.condition](FilterContext(now=now))
        return None if recovery.resend_turn_as_staff(one, guard) else self._explain_change(one, batch)


def _is_over_limit(user_id: int) -> bool:
    """It would only be refused at its start; whoever runs it decides again then."""
    try:
        limit_checks.check_limits(user_id)
    except errors.LimitReached:
        return True
    return False


class RequeueAllStuckAction(RequeueAction):
    takes_ids, takes_all = False, True
    condition = "stuck_queued"


# --- clean up ----------------------------------------------------------------------------------------


class CleanUpOrphanedAction(ExecutionAction):
    """The fence is taken and the execution fails, once; whoever still ran it can write no more."""

    takes_ids = True
    condition = "orphaned"

    def get_objection(
        self, row: turn_selectors.TurnOverview, moment: FilterContext, meant: bool
    ) -> str | None:
        if row.status not in (turn_selectors.RUNNING, turn_selectors.QUEUED):
            return f"wrong_status:{row.status}"
        if meant:
            return None
        live = row.status == turn_selectors.RUNNING and moment.get_liveness(row.id) == "live"
        return "still_live" if live else "not_orphaned"

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        moment = turn_filters.judge_running_turns(snapshot_transaction.get_database_time(), one=one)
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
        self, row: turn_selectors.TurnOverview, moment: FilterContext, meant: bool
    ) -> str | None:
        if row.status != turn_selectors.QUEUED:
            return f"wrong_status:{row.status}"
        return None if meant else "not_stuck"

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        guard = turn_filters.filter_stuck_queued(FilterContext(now=snapshot_transaction.get_database_time()))
        return (
            None
            if recovery.fail_turn_as_staff(one, guard, "never_started")
            else self._explain_change(one, batch)
        )


# MERGED repairs.schedules: Schedules that can no longer run are switched off, with the reason, and their owners told (D11).

DISABLED_REASON_PREFIX = "Switched off: "


class CleanUpOrphanedSchedulesAction(RepairAction):
    """By ids or by preview; those that are in order, and the system's own, are not touched."""

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
        """Judged again just before, and by the update only while it is on."""
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


# MERGED repairs.stranded: Messages that wait although nothing runs: the turn that the reaper would start, by hand (D3, D9).


class StartStrandedAction(RepairAction):
    """By the ids of sessions; those in which something runs, or whose owner is at a limit, are left alone."""

    takes_ids = True

    def find_targets(self, most: int) -> tuple[list[UUID], int]:
        found = sorted(aggregates.find_stranded_sessions())
        return found[:most], len(found)

    def find_objections(self, batch: RepairBatch) -> SkipReasons:
        with snapshot_transaction.open_snapshot():
            known = turn_selectors.get_session_owner_ids(list(batch.ids))
            waiting, free = _find_waiting_sessions(), set(aggregates.find_stranded_sessions())
        return {one: _explain_skip(one, known, waiting) for one in batch.ids if one not in free}

    def change_one(self, one: UUID, batch: RepairBatch) -> str | None:
        """Of two who start it at once the lease lets one; the turn it opens is what the other finds."""
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
    """Those that a limit keeps, too."""
    return set(turn_selectors.list_stranded_sessions(seconds=turn_filters.STRANDED_AFTER_SECONDS))


def _explain_skip(one: UUID, known: dict[UUID, int], waiting: set[UUID]) -> str:
    if one not in known:
        return "not_found"
    return "limit_refused" if one in waiting else "not_stuck"
