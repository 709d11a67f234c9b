"""What cuts a run short: a stop, a silence, a limit, a planned shutdown, a lost fence, a fault of ours (A1, T7, T9.4)."""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

from django.conf import settings

from copilot import turns
from copilot.agent import endings, taking
from copilot.agent.loop import Loop
from copilot.agent.mending import close_open
from copilot.agent.parts import CallMade, ResultMade
from copilot.agent.runs import Run
from copilot.agent.toolruns import OpenCall
from copilot.bridge import in_thread
from copilot.errors import FenceLost
from copilot.tools.calls import STOPPED, error_outcome

log = logging.getLogger(__name__)

FINAL_WRITES_SECONDS = 5.0  # after a stop; then the sweep ends the turn instead (A1.7)


async def obey(run: Run) -> None:
    """Final writes run in a task of their own: a second cancellation cannot cut them short (A1.7)."""
    final = asyncio.ensure_future(_obey(run))
    await asyncio.wait([final], timeout=FINAL_WRITES_SECONDS)
    if not final.done():
        final.cancel()
        log.error("the final writes of turn %s took too long; the sweep will end it", run.turn.turn_id)
    elif (problem := final.exception()) is not None:
        if not isinstance(problem, FenceLost):
            raise problem
        run.leave()


async def _obey(run: Run) -> None:
    if run.interruption != "lost":
        await run.recorder.calls.withdraw()
    match run.interruption:
        case "stop":
            await _close_open(run, STOPPED, cancelled=True)
            await endings.stop(run)
        case "idle_timeout":
            await _close_open(run, "Failed: nothing was heard for too long.")
            await endings.fail(run, "idle_timeout")
        case "time_limit":
            await _close_open(run, "Not finished: the time of this turn is over.")
            await endings.end_at_limit(run, "time_limit")
        case "worker_shutdown" | "outage":
            log.info("turn %s is handed over: %s", run.turn.turn_id, run.interruption)
            await _hand_over(run)
        case "lost" | None:
            run.leave()


async def break_off(run: Run) -> None:
    """Something of ours failed: keep what was produced, and say so (T5.4)."""
    await run.recorder.calls.withdraw()
    await _close_open(run, "Failed before it finished.")
    await endings.fail(run, "unknown")


async def _close_open(run: Run, result: str, *, cancelled: bool = False) -> None:
    """Keep everything that was produced; no block, call or step is left open (A3.5, T7.2)."""
    loop = run.loop
    if loop is None:
        await _close_earlier(run, result, cancelled=cancelled)
        return
    if (block := loop.open_block) is not None:
        await run.recorder.record(block)
    for open_call in loop.open_calls or _to_repeat(loop):
        if not open_call.made:
            await run.recorder.record(CallMade(row_id=open_call.row_id, call=open_call.call))
        outcome = error_outcome(open_call.call, result, cancelled=cancelled)
        await run.recorder.record(ResultMade(row_id=uuid4(), outcome=outcome))
    if (step := loop.open_step) is not None:
        run.recorder.publish(step)
    if (call := loop.open_call()) is not None:
        await run.recorder.record(call)


def _to_repeat(loop: Loop) -> tuple[OpenCall, ...]:
    """Calls of an earlier run that would have run again: their rows stand."""
    return tuple(OpenCall(row_id=uuid4(), call=call, made=True) for call in loop.pending_calls)


async def _close_earlier(run: Run, result: str, *, cancelled: bool) -> None:
    """The same for what an earlier run of the turn left open, when this one has not begun."""
    turn = run.turn
    if turn.resumed:
        for event in await in_thread(
            close_open, turn.session_id, turn.turn_id, result, fence=turn.fence, cancelled=cancelled
        ):
            run.recorder.publish(event)


async def _hand_over(run: Run) -> None:
    """A planned shutdown: checkpoint, and give the turn to another worker (A1.8, T9.4).

    One too many of them is a loss, and one loss too many is the turn's end (A3.9).
    """
    lost = run.turn.handovers >= turns.MAX_HANDOVERS
    if lost and run.turn.attempts >= settings.TURN_MAX_ATTEMPTS:
        await _close_open(run, "Interrupted, outcome unknown: too many workers were lost while this ran.")
        await endings.fail(run, "worker_lost")
        return
    if run.loop is not None and (call := run.loop.open_call()) is not None:
        await run.recorder.record(call)
    await run.services.checkpoint()
    await run.services.publisher.flush(run.outbox)
    run.recorder.abandon()
    await in_thread(taking.give_away, run.turn, lost=lost)
