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

from billing import errors as billing_errors
from billing import usage as billing_usage
from copilot import dispatch, recovery
from copilot.queries import executions
from diagnostics import conditions, reading
from diagnostics.audit import State
from diagnostics.conditions import CONDITIONS, Moment
from diagnostics.repairs.results import Batch, Reasons, States

log = logging.getLogger(__name__)

REQUEUED_RECENTLY = timedelta(seconds=60)
LOOK_SECONDS = 0.1
OVERRIDE_SECONDS = 5.0  # of a stop that is not obeyed (T7.1)


class Action(ABC):
    """One line of D9's table."""

    takes_ids: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def matching(self, most: int) -> tuple[list[UUID], int]:
        """Of a repair of all: the oldest, and how many there are."""

    @abstractmethod
    def against(self, batch: Batch) -> Reasons:
        """What speaks against changing each, without changing anything."""

    def act(self, batch: Batch) -> Reasons:
        """Change what may be changed; the reasons of the rest."""
        reasons = dict(self.against(batch))
        for one in batch.ids:
            if one in reasons:
                continue
            if time.monotonic() > batch.deadline:
                reasons[one] = "error:timeout"
            elif (reason := tried(self.change, one, batch)) is not None:
                reasons[one] = reason
        return reasons

    def change(self, one: UUID, batch: Batch) -> str | None:
        """One that nothing speaks against; why it was left alone after all, or None."""
        raise NotImplementedError

    @abstractmethod
    def states(self, ids: Sequence[UUID]) -> States: ...

    def touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """What a change of these may change besides."""
        return ()


class OnExecutions(Action):
    """Each id is judged by the row and the condition, and again by the update that changes it."""

    condition: ClassVar[str] = ""  # of D3: what the repair is for

    def matching(self, most: int) -> tuple[list[UUID], int]:
        with reading.one_moment() as now:
            rows = executions.everything().filter(CONDITIONS[self.condition](conditions.judged(now)))
            return list(rows.order_by("created_at", "pk").values_list("pk", flat=True)[:most]), rows.count()

    def states(self, ids: Sequence[UUID]) -> States:
        return {
            row_id: State(status=status, fence=fence) for row_id, status, fence in executions.states_of(ids)
        }

    def against(self, batch: Batch) -> Reasons:
        with reading.one_moment() as now:
            moment = conditions.judged(now)
            rows = {row.id: row for row in executions.described(executions.among(batch.ids))}
            meant = self._meant(batch.ids, moment)
            found = {one: self._reason(rows.get(one), moment, one in meant, batch) for one in batch.ids}
        return {one: reason for one, reason in found.items() if reason is not None}

    def _meant(self, ids: Sequence[UUID], moment: Moment) -> set[UUID]:
        """Those that are in the condition which the repair is for."""
        if not self.condition:
            return set(ids)
        rows = executions.among(ids).filter(CONDITIONS[self.condition](moment))
        return set(rows.values_list("pk", flat=True))

    def _reason(
        self, row: executions.Described | None, moment: Moment, meant: bool, batch: Batch
    ) -> str | None:
        if row is None:
            return "not_found"
        if row.ended_at is not None and batch.previewed:
            return "already_ended"
        return self.objection(row, moment, meant)

    @abstractmethod
    def objection(self, row: executions.Described, moment: Moment, meant: bool) -> str | None:
        """Why this row is left alone, or None."""

    def _meanwhile(self, one: UUID, batch: Batch) -> str:
        """It was to be changed, and the update found something else."""
        again = Batch(
            ids=[one], previewed=batch.previewed, deadline=batch.deadline, now=batch.now, reason=batch.reason
        )
        return self.against(again).get(one, "changed_meanwhile")


def tried(change: Callable[[UUID, Batch], str | None], one: UUID, batch: Batch) -> str | None:
    """One that fails keeps no other waiting (D8)."""
    try:
        return change(one, batch)
    except Error as problem:
        log.warning("execution %s could not be repaired: %s", one, type(problem).__name__)
        connection.close_if_unusable_or_obsolete()
        return "error:database"
    except recovery.Away:
        return "error:redis"
    except Exception:
        log.exception("execution %s could not be repaired", one)
        return "error:internal"


# --- stop --------------------------------------------------------------------------------------------


class Stop(OnExecutions):
    """The ordinary stop, with the owner's rights; queued messages stay, children end too (T7)."""

    takes_ids = True

    def objection(self, row: executions.Described, moment: Moment, meant: bool) -> str | None:
        if row.ended_at is not None:
            return "already_ended"
        return None if meant else "changed_meanwhile"

    def touched(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        return executions.descendants(ids)

    def act(self, batch: Batch) -> Reasons:
        reasons = dict(self.against(batch))
        ours: set[UUID] = set()  # whose stop was asked for here first, so that one call alone counts it
        for one in batch.ids:
            if one in reasons:
                continue
            if time.monotonic() > batch.deadline:
                reasons[one] = "error:timeout"
            elif (reason := tried(self._ask(ours), one, batch)) is not None:
                reasons[one] = "stop_pending" if reason == "error:database" else reason
        asked = [one for one in batch.ids if one not in reasons]
        deadline = min(batch.deadline, time.monotonic() + settings.DIAG_STOP_WAIT_SECONDS)
        ended = self._awaited(asked, deadline, ours)
        for one in asked:
            if ended.get(one) != executions.CANCELLED:
                reasons[one] = "already_ended" if one in ended else "stop_pending"
            elif one not in ours:
                reasons[one] = "already_ended"
        return reasons

    def _ask(self, ours: set[UUID]) -> Callable[[UUID, Batch], str | None]:
        def ask(one: UUID, batch: Batch) -> str | None:
            stopping = dispatch.stop_execution(one)
            if stopping is None:
                return "already_ended"
            if stopping.first:
                ours.add(one)
            return None

        return ask

    def _awaited(self, asked: Sequence[UUID], deadline: float, ours: set[UUID]) -> dict[UUID, str]:
        """One wait for all of them; who has not obeyed after five seconds is overridden here, whatever the sweep does."""
        began = time.monotonic()
        while True:
            try:
                status = {one: status for one, status, _ in executions.states_of(asked)}
                ended = {one: name for one, name in status.items() if name in executions.ENDINGS}
                if len(ended) == len(status) or time.monotonic() > deadline:
                    return ended
                if time.monotonic() - began > OVERRIDE_SECONDS:
                    ours.update(one for one in status if one not in ended and self._override(one))
            except Error:
                connection.close_if_unusable_or_obsolete()
                if time.monotonic() > deadline:
                    return {}
            time.sleep(LOOK_SECONDS)

    def _override(self, one: UUID) -> bool:
        try:
            return recovery.override_stop(one)
        except (Error, *recovery.Away):
            return False


class StopAllLongRunning(Stop):
    takes_ids, takes_all = False, True
    condition = "long_running"


# --- requeue -----------------------------------------------------------------------------------------


class Requeue(OnExecutions):
    """The job is published once more; of two copies one runs and the other leaves (T5.1)."""

    takes_ids = True

    def objection(self, row: executions.Described, moment: Moment, meant: bool) -> str | None:
        if row.status != executions.QUEUED:
            return f"wrong_status:{row.status}"
        if row.stop_requested_at is not None:
            return "stop_pending"
        if not meant:
            return "not_stuck"
        if (row.dispatched_at or row.queued_at) > moment.now - REQUEUED_RECENTLY:
            return "recently_requeued"
        return None

    def against(self, batch: Batch) -> Reasons:
        """Limits are asked for outside the look at the rows: billing may have something to write down."""
        reasons = dict(super().against(batch))
        owners = executions.owners(one for one in batch.ids if one not in reasons)
        refused = {owner for owner in set(owners.values()) if _is_at_a_limit(owner)}
        return reasons | {one: "limit_refused" for one, owner in owners.items() if owner in refused}

    def change(self, one: UUID, batch: Batch) -> str | None:
        now = reading.now()
        guard = Q(stop_requested_at=None) & (
            Q(dispatched_at__lte=now - REQUEUED_RECENTLY)
            | Q(dispatched_at=None, queued_at__lte=now - REQUEUED_RECENTLY)
        )
        if self.condition:
            guard &= CONDITIONS[self.condition](Moment(now=now))
        return None if recovery.send_anew(one, guard) else self._meanwhile(one, batch)


def _is_at_a_limit(user_id: int) -> bool:
    """It would only be refused at its start; whoever runs it decides again then."""
    try:
        billing_usage.check(user_id)
    except billing_errors.LimitReached:
        return True
    return False


class RequeueAllStuck(Requeue):
    takes_ids, takes_all = False, True
    condition = "stuck_queued"


# --- clean up ----------------------------------------------------------------------------------------


class CleanUpOrphaned(OnExecutions):
    """The fence is taken and the execution fails, once; whoever still ran it can write no more."""

    takes_ids = True
    condition = "orphaned"

    def objection(self, row: executions.Described, moment: Moment, meant: bool) -> str | None:
        if row.status not in (executions.RUNNING, executions.QUEUED):
            return f"wrong_status:{row.status}"
        if meant:
            return None
        live = row.status == executions.RUNNING and moment.liveness(row.id) == "live"
        return "still_live" if live else "not_orphaned"

    def change(self, one: UUID, batch: Batch) -> str | None:
        moment = conditions.judged(reading.now(), one=one)
        if recovery.give_up(one, conditions.orphaned_running(moment), "worker_lost"):
            return None
        if recovery.give_up(one, conditions.orphaned_queued(moment), "never_started"):
            return None
        return self._meanwhile(one, batch)


class CleanUpAllOrphaned(CleanUpOrphaned):
    takes_ids, takes_all = False, True


class CleanUpAllStuckQueued(OnExecutions):
    takes_all = True
    condition = "stuck_queued"

    def objection(self, row: executions.Described, moment: Moment, meant: bool) -> str | None:
        if row.status != executions.QUEUED:
            return f"wrong_status:{row.status}"
        return None if meant else "not_stuck"

    def change(self, one: UUID, batch: Batch) -> str | None:
        guard = conditions.stuck_queued(Moment(now=reading.now()))
        return None if recovery.give_up(one, guard, "never_started") else self._meanwhile(one, batch)
