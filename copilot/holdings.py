"""The leases of the turns a process runs: guarded from their first moment, renewed, and made anew when Redis lost them (T4)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from copilot import sessions, turns
from copilot.agent.turn import TurnRun
from copilot.bridge import in_thread, retried
from copilot.live import lease
from copilot.live.client import RedisDown
from copilot.live.publisher import Outbox

log = logging.getLogger(__name__)


class Holdings:
    """On the engine's loop; `runs` is the engine's own book of what runs, `keep` starts work beside it."""

    def __init__(self, runs: Mapping[str, TurnRun], keep: Callable[[Awaitable[None]], None]) -> None:
        self._runs = runs
        self._keep = keep
        self._restoring: set[str] = set()  # turns whose lease is being made anew

    async def guard(self, run: TurnRun) -> None:
        """The lease runs from now on, and the log knows our fence before it hears from us."""
        holding = _holding(run)
        try:
            [answer] = await lease.renew([holding])
            if answer in ("missing", "lost") and not run.over:
                # Redis forgot it, or never knew: the row says it is ours.
                await in_thread(
                    lease.take_over,
                    holding.session_id,
                    turn_id=holding.turn_id,
                    token=holding.token,
                    fence=holding.fence,
                )
                await lease.renew([holding])
        except RedisDown:
            log.warning("the lease of turn %s could not be renewed yet", holding.turn_id)
        finally:
            run.services.publisher.unshut(run.outbox)

    async def renew(self) -> None:
        runs = list(self._runs.values())
        answers = await lease.renew([_holding(run) for run in runs])
        missing = [run for run, answer in zip(runs, answers, strict=True) if answer != "renewed"]
        if missing:
            await self._restore(missing)

    async def _restore(self, runs: list[TurnRun]) -> None:
        """Leases that Redis lost are made anew if the rows say so; the others' turns are no longer ours."""
        held = [(run.turn.turn_id, run.turn.fence) for run in runs]
        ours = await retried(turns.still_running, held)
        for run in runs:
            if run.turn.turn_id not in ours and not run.over:
                run.interrupt("lost")
        kept = [run for run in runs if run.turn.turn_id in ours and not run.over]
        # A block that ended meanwhile is told by nobody else: the sweep tells these pages anew. Noted before the log
        # takes anything, and once more behind it: a sweep in between may have told a page before such a block's end.
        pages = {run.turn.session_id for run in kept}
        await in_thread(sessions.note_untold, *pages)
        await lease.renew([_holding(run) for run in kept], recreate=True)
        for run in kept:
            if run.over:  # it ended meanwhile: its lease may have been made anew after it was let go
                await in_thread(lease.give_back, str(run.turn.session_id), str(run.turn.token))
            else:
                run.recorder.tell_open_anew()
        await in_thread(sessions.note_untold, *pages)

    def recovered(self) -> None:
        """Redis is back, and may have lost what it was told last."""
        for run in self._runs.values():
            run.recorder.tell_open_anew()

    def refused(self, outbox: Outbox, why: str) -> None:
        """The log belongs to a newer fence, or knows none."""
        run = self._runs.get(outbox.turn_id)
        if run is None or run.outbox is not outbox:
            outbox.waiting.clear()
        elif run.over:
            if outbox.fence is not None:  # whoever follows the log learns the rest from the rows
                outbox.waiting.clear()
        elif why == "refused":
            run.interrupt("lost")
        elif outbox.turn_id not in self._restoring:
            self._restoring.add(outbox.turn_id)
            self._keep(self._restore_one(run))

    async def _restore_one(self, run: TurnRun) -> None:
        try:
            await self._restore([run])
        except RedisDown:
            log.warning("the lease of turn %s could not be made anew yet", run.turn.turn_id)
        finally:
            self._restoring.discard(str(run.turn.turn_id))


def _holding(run: TurnRun) -> lease.Holding:
    turn = run.turn
    return lease.Holding(str(turn.session_id), str(turn.turn_id), str(turn.token), turn.fence)
