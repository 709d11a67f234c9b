"""A turn's one ending: decided in Postgres, told, and then the session is let go (A3.5, A3.6, T5.4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal, TypeVar
from uuid import uuid4

from copilot import approvals, questions, sessions, turns
from copilot.agent import errands, taking
from copilot.agent.budgets import may_prolong
from copilot.agent.commits import uncut
from copilot.agent.parts import Answered
from copilot.agent.runs import Run
from copilot.bridge import in_thread, retried
from copilot.errors import FenceLost, TurnConflict
from copilot.events import (
    ApprovalDecided,
    ContextUse,
    ContextView,
    Ending,
    QuestionClosed,
    TurnCancelled,
    TurnFailed,
    TurnSucceeded,
    TurnSummary,
)
from copilot.live.lease import EVERYTHING_STAYS, Release
from copilot.models import Turn
from copilot.notices import NOBODY, LimitCode, Source
from copilot.ports import follow, send_errand
from copilot.turns import Ended

T = TypeVar("T")


async def succeed(run: Run, answered: Answered) -> bool:
    """End as succeeded; False when something was queued that this turn goes on with (T6.3)."""
    replies = run.turn.purpose == "reply"
    may_go_on = replies and run.loop is not None and run.loop.can_go_on and answered.limit_code is None
    taken = summary(run)  # one for the row and the event: live and reloaded pages show the same
    try:
        ended = await _end(
            run, turns.SUCCEEDED, limit_code=answered.limit_code or "", unless_pending=may_go_on, taken=taken
        )
    except TurnConflict:
        if not may_go_on:
            raise FenceLost(f"turn {run.turn.turn_id} was ended by somebody else") from None
        if await _can_pay(run) and await uncut(_go_on(run)):
            return False
        ended = await _end_or_lose(run, turns.SUCCEEDED, taken=taken)
    event = TurnSucceeded(
        run_ids=ended.run_ids, summary=taken, limit_code=answered.limit_code, context=_context_view(run)
    )
    await _over(run, event, ended, keep_through=None if replies else run.turn.accepted_through)
    full = run.loop is not None and run.loop.shortening.is_due()
    for errand in errands.after(ended, full=full) if replies else ():
        run.services.in_background(in_thread(send_errand, errand, run.turn.turn_id))
    return True


async def _can_pay(run: Run) -> bool:
    """A spent budget is this turn's: what is queued gets a turn, and a budget, of its own (A10.4)."""
    paid = run.loop is not None and await run.loop.can_pay()
    return paid and await in_thread(may_prolong, run.turn)


async def _go_on(run: Run) -> bool:
    """Take what is queued into this turn, if it may join."""
    taken = await in_thread(taking.at_turn_end, run.turn)
    if not taken:
        return False
    await taking.tell(run.turn, run.recorder, taken)
    assert run.loop is not None
    run.loop.go_on(await in_thread(taking.messages, run.turn, taken, run.loop.chain))
    return True


async def fail(run: Run, code: str, details: str = "", source: Source = NOBODY) -> None:
    notice_id = await run.recorder.notice(code, details, source=source)
    await _close_requests(run, by="automatic")
    ended = await _end_or_lose(run, turns.FAILED, failure_code=code)
    event = TurnFailed(run_ids=ended.run_ids, code=code, notice_id=str(notice_id), context=_context_view(run))
    await _over(run, event, ended, keep_through=EVERYTHING_STAYS)


async def end_at_limit(run: Run, code: LimitCode) -> None:
    """A limit came in the middle of a round: as answered when something was said, else as failed (A10.6)."""
    if run.loop is None or not run.loop.has_spoken:
        await fail(run, code)
        return
    await run.recorder.notice(code)
    await _close_requests(run, by="automatic")
    await succeed(run, Answered(limit_code=code))


async def stop(run: Run) -> None:
    """The owner stopped it: what was queued before the stop stays as chips (T7.4)."""
    await _close_requests(run, by="user")
    await run.recorder.notice("stopped")
    ended = await _end_or_lose(run, turns.CANCELLED, reason="user")
    keep_through = EVERYTHING_STAYS if ended.stop_through is None else ended.stop_through
    event = TurnCancelled(run_ids=ended.run_ids, reason=ended.cancel_reason, context=_context_view(run))
    await _over(run, event, ended, keep_through=keep_through)


async def _close_requests(run: Run, by: Literal["user", "automatic"]) -> None:
    """Nobody answers or decides any more."""
    for question_id in await in_thread(questions.close_for_turn, run.turn.turn_id, "cancelled"):
        run.recorder.publish(QuestionClosed(question_id=str(question_id), outcome="cancelled"))
    if run.approved or run.turn.resumed:
        for row in await in_thread(approvals.close, run.turn.turn_id, "cancelled"):
            run.recorder.publish(ApprovalDecided(approval_id=str(row.pk), state="cancelled", by=by))


# --- the one update ----------------------------------------------------------------------------------


async def _end_or_lose(
    run: Run,
    to: Turn.Status,
    *,
    failure_code: str = "",
    reason: str = "",
    taken: TurnSummary | None = None,
) -> Ended:
    try:
        return await _end(run, to, failure_code=failure_code, reason=reason, taken=taken)
    except TurnConflict as conflict:
        raise FenceLost(f"turn {run.turn.turn_id} was ended by somebody else") from conflict


async def _end(
    run: Run,
    to: Turn.Status,
    *,
    failure_code: str = "",
    limit_code: str = "",
    reason: str = "",
    unless_pending: bool = False,
    taken: TurnSummary | None = None,
) -> Ended:
    turn_id, fence = run.turn.turn_id, run.turn.fence
    taken = taken or summary(run)
    context = _context(run)
    tries = count(1)

    def end(_: None) -> Ended:
        number = next(tries)
        try:
            return turns.end(
                turn_id,
                fence,
                to,
                failure_code=failure_code,
                limit_code=limit_code,
                reason=reason,
                summary=taken,
                context=context,
                unless_pending=unless_pending,
                telling=False,
            )
        except TurnConflict:  # of a second try: the first may have come through before the database went
            ended = turns.ended_already(turn_id, fence, to) if number > 1 else None
            if ended is None:
                raise
            return ended

    ended = await decided(run, end)
    run.close()
    return ended


async def decided(run: Run, act: Callable[[None], T]) -> T:
    """A move of the turn that an interruption has to wait for; one that came meanwhile goes first if it fails."""
    interruption, run.deciding = run.interruption, True
    try:
        return await retried(act, None)
    except TurnConflict:
        if run.interruption != interruption and asyncio.current_task() is run.task:
            raise asyncio.CancelledError from None  # it came meanwhile, and was kept waiting
        raise
    finally:
        run.deciding = False


async def _over(run: Run, event: Ending, ended: Ended, *, keep_through: int | None) -> None:
    """Tell the ending, then let the session go or start what follows."""
    await run.recorder.calls.settle()
    run.outbox.fence = None  # Postgres has decided for us: no fence, known to Redis or not, refuses it
    run.recorder.publish(event)
    for news in ended.news():
        run.recorder.publish(news)
    next_turn, next_token = uuid4(), uuid4()
    release = Release(
        session_id=str(run.turn.session_id),
        token=str(run.turn.token),
        keep_through=keep_through,
        next_turn_id=str(next_turn),
        next_token=str(next_token),
    )
    parting = await run.services.publisher.finish(run.outbox, release)
    if not parting.remembered:
        await in_thread(sessions.note_untold, run.turn.session_id)  # what the log lost is told by the sweep
    if parting.verdict == "kept":
        await in_thread(follow, run.turn.session_id, next_turn, next_token, keep_through)
    if turns.concerns_others(run.turn.origin):
        run.services.in_background(in_thread(turns.tell, run.turn.turn_id, run.turn.origin, "ended"))


# --- figures -----------------------------------------------------------------------------------------


def _context(run: Run) -> ContextUse | None:
    """How full the window is and how requests begin, for the session's next turn; None when nothing was played."""
    if run.loop is None:
        return None
    use = run.loop.context_use(through=run.recorder.last_place)
    return replace(use, model=run.loop.entry.name, shape=run.shape)


def _context_view(run: Run) -> ContextView | None:
    use = _context(run)
    return None if use is None else use.view()


def summary(run: Run) -> TurnSummary:
    """What the turn took, the runs before this one included (A3.6)."""
    loop = run.loop  # None: nothing was played in this run
    tokens = loop.tokens if loop else run.earlier.tokens
    seconds = loop.generation_seconds if loop else run.earlier.generation_seconds
    return TurnSummary(
        duration_ms=_since_accepted(run, datetime.now(UTC)),
        first_token_ms=_first_token_ms(run),
        tokens_per_second=round(tokens.output / seconds, 1) if seconds > 0 else None,
        rounds=loop.rounds if loop else run.earlier.rounds,
        tokens=tokens,
        model=loop.entry.name if loop else run.recorder.model,
    )


def _first_token_ms(run: Run) -> int | None:
    if (first := run.earlier.first_token_at) is not None:
        return _since_accepted(run, first)
    if run.loop is None or run.loop.first_token_at is None:
        return None
    ago = timedelta(seconds=time.monotonic() - run.loop.first_token_at)
    return _since_accepted(run, datetime.now(UTC) - ago)


def _since_accepted(run: Run, moment: datetime) -> int:
    return int((moment - run.turn.accepted_at).total_seconds() * 1000)
