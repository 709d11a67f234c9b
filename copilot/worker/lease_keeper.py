"""Hold the leases of the turns that a process runs: acquire, renew, and restore them after Redis lost them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog

from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent.runner import TurnRunner
from copilot.chat import announcements, turns
from copilot.realtime import lease
from copilot.realtime.publisher import TurnOutbox

log = structlog.get_logger(__name__)


class LeaseKeeper:
    """The leases of a worker. `runs` is the worker's own dict of running turns, `spawn` starts a background task."""

    def __init__(self, runs: Mapping[str, TurnRunner], spawn: Callable[[Awaitable[None]], None]) -> None:
        self._runs = runs
        self._spawn = spawn
        self._restoring: set[str] = set()  # turns whose lease is being restored

    async def guard_lease(self, run: TurnRunner) -> None:
        """Start the lifetime of the lease and raise the fence of the event log, then let the run publish."""
        holding = _build_held_lease(run)
        try:
            [answer] = await lease.renew_leases([holding])
            if answer in ("missing", "lost") and not run.is_over:
                # Redis forgot the lease or never had it. The row says that the turn is ours.
                await run_in_thread(
                    lease.take_over_lease,
                    holding.session_id,
                    turn_id=holding.turn_id,
                    token=holding.token,
                    fence=holding.fence,
                )
                await lease.renew_leases([holding])
        except REDIS_OUTAGE_ERRORS:
            log.warning("lease_not_acquired", session_id=holding.session_id, turn_id=holding.turn_id)
        finally:
            run.services.publisher.enable_outbox(run.outbox)

    async def renew_all(self) -> None:
        runs = list(self._runs.values())
        answers = await lease.renew_leases([_build_held_lease(run) for run in runs])
        missing = [run for run, answer in zip(runs, answers, strict=True) if answer != "renewed"]
        if missing:
            await self._restore_leases(missing)

    async def _restore_leases(self, runs: list[TurnRunner]) -> None:
        """Restore lost leases of turns that the rows still assign to us, and interrupt the others."""
        held = [(run.turn.turn_id, run.turn.fence) for run in runs]
        ours = await run_in_thread_with_retry(turns.list_still_running, held)
        for run in runs:
            if run.turn.turn_id not in ours and not run.is_over:
                run.interrupt("lost")
        kept = [run for run in runs if run.turn.turn_id in ours and not run.is_over]
        # Nothing else publishes a block that ended meanwhile, so the sweep publishes these sessions again. They are
        # marked before the log accepts events and once more afterwards: a sweep in between may have published a
        # snapshot from before the end of such a block.
        session_ids = {run.turn.session_id for run in kept}
        await run_in_thread(announcements.mark_unpublished, *session_ids)
        await lease.renew_leases([_build_held_lease(run) for run in kept], recreate=True)
        for run in kept:
            if run.is_over:  # it ended meanwhile: its lease may have been restored after it was released
                await run_in_thread(lease.release_lease, str(run.turn.session_id), str(run.turn.token))
            else:
                run.recorder.republish_open_rows()
        await run_in_thread(announcements.mark_unpublished, *session_ids)

    def handle_redis_recovered(self) -> None:
        """Publish open rows again: Redis may have lost its last writes."""
        for run in self._runs.values():
            run.recorder.republish_open_rows()

    def handle_refused_publish(self, outbox: TurnOutbox, reason: str) -> None:
        """React to a log that belongs to a newer fence ("refused") or knows no fence ("unknown")."""
        run = self._runs.get(outbox.turn_id)
        if run is None or run.outbox is not outbox:
            outbox.waiting.clear()
        elif run.is_over:
            if outbox.fence is not None:  # subscribers learn the rest from a snapshot of the rows
                outbox.waiting.clear()
        elif reason == "refused":
            run.interrupt("lost")
        elif outbox.turn_id not in self._restoring:
            self._restoring.add(outbox.turn_id)
            self._spawn(self._restore_lease(run))

    async def _restore_lease(self, run: TurnRunner) -> None:
        try:
            await self._restore_leases([run])
        except REDIS_OUTAGE_ERRORS:
            log.warning(
                "lease_not_restored", session_id=str(run.turn.session_id), turn_id=str(run.turn.turn_id)
            )
        finally:
            self._restoring.discard(str(run.turn.turn_id))


def _build_held_lease(run: TurnRunner) -> lease.HeldLease:
    turn = run.turn
    return lease.HeldLease(str(turn.session_id), str(turn.turn_id), str(turn.token), turn.fence)
