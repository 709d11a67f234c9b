"""The leases of the turns a process runs: guarded from their first moment, renewed, and made anew when Redis lost them (T4)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent.runner import TurnRunner
from copilot.chat import announcements, turns
from copilot.realtime import lease
from copilot.realtime.publisher import TurnOutbox

log = logging.getLogger(__name__)


class LeaseKeeper:
    """On the engine's loop; `runs` is the engine's own book of what runs, `keep` starts work beside it."""

    def __init__(self, runs: Mapping[str, TurnRunner], keep: Callable[[Awaitable[None]], None]) -> None:
        self._runs = runs
        self._spawn = keep
        self._restoring: set[str] = set()  # turns whose lease is being made anew

    async def guard_lease(self, run: TurnRunner) -> None:
        """The lease runs from now on, and the log knows our fence before it hears from us."""
        holding = _build_held_lease(run)
        try:
            [answer] = await lease.renew_leases([holding])
            if answer in ("missing", "lost") and not run.is_over:
                # Redis forgot it, or never knew: the row says it is ours.
                await run_in_thread(
                    lease.take_over_lease,
                    holding.session_id,
                    turn_id=holding.turn_id,
                    token=holding.token,
                    fence=holding.fence,
                )
                await lease.renew_leases([holding])
        except REDIS_OUTAGE_ERRORS:
            log.warning("the lease of turn %s could not be renewed yet", holding.turn_id)
        finally:
            run.services.publisher.enable_outbox(run.outbox)

    async def renew_all(self) -> None:
        runs = list(self._runs.values())
        answers = await lease.renew_leases([_build_held_lease(run) for run in runs])
        missing = [run for run, answer in zip(runs, answers, strict=True) if answer != "renewed"]
        if missing:
            await self._restore_leases(missing)

    async def _restore_leases(self, runs: list[TurnRunner]) -> None:
        """Leases that Redis lost are made anew if the rows say so; the others' turns are no longer ours."""
        held = [(run.turn.turn_id, run.turn.fence) for run in runs]
        ours = await run_in_thread_with_retry(turns.list_still_running, held)
        for run in runs:
            if run.turn.turn_id not in ours and not run.is_over:
                run.interrupt("lost")
        kept = [run for run in runs if run.turn.turn_id in ours and not run.is_over]
        # A block that ended meanwhile is told by nobody else: the sweep tells these pages anew. Noted before the log
        # takes anything, and once more behind it: a sweep in between may have told a page before such a block's end.
        pages = {run.turn.session_id for run in kept}
        await run_in_thread(announcements.mark_unpublished, *pages)
        await lease.renew_leases([_build_held_lease(run) for run in kept], recreate=True)
        for run in kept:
            if run.is_over:  # it ended meanwhile: its lease may have been made anew after it was let go
                await run_in_thread(lease.release_lease, str(run.turn.session_id), str(run.turn.token))
            else:
                run.recorder.republish_open_rows()
        await run_in_thread(announcements.mark_unpublished, *pages)

    def handle_redis_recovered(self) -> None:
        """Redis is back, and may have lost what it was told last."""
        for run in self._runs.values():
            run.recorder.republish_open_rows()

    def handle_refused_publish(self, outbox: TurnOutbox, why: str) -> None:
        """The log belongs to a newer fence, or knows none."""
        run = self._runs.get(outbox.turn_id)
        if run is None or run.outbox is not outbox:
            outbox.waiting.clear()
        elif run.is_over:
            if outbox.fence is not None:  # whoever follows the log learns the rest from the rows
                outbox.waiting.clear()
        elif why == "refused":
            run.interrupt("lost")
        elif outbox.turn_id not in self._restoring:
            self._restoring.add(outbox.turn_id)
            self._spawn(self._restore_lease(run))

    async def _restore_lease(self, run: TurnRunner) -> None:
        try:
            await self._restore_leases([run])
        except REDIS_OUTAGE_ERRORS:
            log.warning("the lease of turn %s could not be made anew yet", run.turn.turn_id)
        finally:
            self._restoring.discard(str(run.turn.turn_id))


def _build_held_lease(run: TurnRunner) -> lease.HeldLease:
    turn = run.turn
    return lease.HeldLease(str(turn.session_id), str(turn.turn_id), str(turn.token), turn.fence)
