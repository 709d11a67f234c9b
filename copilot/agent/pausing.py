"""A run closes because people must decide: requests stand, the turn waits, and nobody waits for it (A11.3)."""

from __future__ import annotations

import asyncio
from itertools import count

from copilot import approvals, awaited, queries, turns
from copilot.agent.endings import decided
from copilot.agent.parts import Asked, Paused
from copilot.agent.runs import Run
from copilot.approvals import Wanted
from copilot.bridge import in_thread
from copilot.errors import FenceLost, TurnConflict
from copilot.events import ApprovalRequested, ApprovalView, TurnPaused
from copilot.live import lease


async def pause(run: Run, paused: Paused) -> None:
    """Write the requests and let the turn wait; a stop that came before goes first."""
    try:
        views = await _request(run, [_wanted(asked) for asked in paused.asked])
    except TurnConflict as conflict:
        if not await in_thread(turns.still_running, [(run.turn.turn_id, run.turn.fence)]):
            raise FenceLost(f"turn {run.turn.turn_id} was ended by somebody else") from conflict
        run.interruption = "stop"
        raise asyncio.CancelledError from None
    run.close()
    await run.recorder.calls.settle()
    await _tell(run, views)
    await in_thread(lease.give_back, str(run.turn.session_id), str(run.turn.token))


async def _request(run: Run, wanted: list[Wanted]) -> list[ApprovalView]:
    turn_id, fence = run.turn.turn_id, run.turn.fence
    tries = count(1)

    def request(_: None) -> list[ApprovalView]:
        number = next(tries)
        try:
            rows = approvals.request(turn_id, fence, wanted)
        except TurnConflict:  # of a second try: the first may have come through before the database went
            rows = approvals.requested(turn_id, fence) if number > 1 else []
            if not rows:
                raise
        return awaited.approval_views(rows)

    return await decided(run, request)


async def _tell(run: Run, views: list[ApprovalView]) -> None:
    run.recorder.publish(ApprovalRequested(approvals=views))
    run.recorder.publish(TurnPaused(approvals=[view.id for view in views]))
    run.recorder.publish(await in_thread(queries.seen_from_afar, run.turn.session_id, "waiting"))
    await run.services.publisher.flush(run.outbox)


def _wanted(asked: Asked) -> Wanted:
    return Wanted(
        call_id=asked.call.call_id,
        tool=asked.call.tool,
        arguments=asked.call.arguments or {},
        reason=asked.reason,
        block_reason=asked.block_reason,
        manual_only=asked.manual_only,
        billable=asked.billable,
        estimate=asked.estimate,
        pinned=asked.pinned,
    )
