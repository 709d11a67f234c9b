"""Runs one turn: begin, play the loop, record and publish, end once, and let the session go (A3, T5)."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Literal
from uuid import uuid4

from django.conf import settings

from copilot import context, questions, turns, usage
from copilot.agent import prompt, taking
from copilot.agent.commits import retried, uncut
from copilot.agent.guards import Limits
from copilot.agent.learned import LESSONS
from copilot.agent.loop import Loop
from copilot.agent.mending import close_open, row_uuid, unfinished_outcome
from copilot.agent.parts import Answered, CallMade, Failed, ResultMade
from copilot.agent.ports import Ports, SystemClock
from copilot.agent.preparing import Prepared, prepare
from copilot.agent.recorder import Recorder
from copilot.agent.replies import Continuing
from copilot.agent.services import Services
from copilot.agent.toolbox import TurnToolbox
from copilot.agent.toolruns import OpenCall
from copilot.bridge import in_thread
from copilot.errors import FenceLost, TurnConflict
from copilot.events import (
    Ending,
    QuestionClosed,
    ReasoningEnded,
    ReasoningExtended,
    SessionChanged,
    TextEnded,
    TextExtended,
    Tokens,
    TurnCancelled,
    TurnFailed,
    TurnHeartbeat,
    TurnStarted,
    TurnSucceeded,
    TurnSummary,
)
from copilot.models import Turn
from copilot.ports import after_turn
from copilot.providers import catalogue, provider_for
from copilot.providers.base import Entry, UserMessage
from copilot.rows import Row
from copilot.turns import Claimed, Ended

log = logging.getLogger(__name__)

FINAL_WRITES_SECONDS = 5.0  # after a stop; then the sweep ends the turn instead (A1.7)
EVERYTHING_STAYS = 2**62  # keep-through of a failed turn: all that is queued stays as chips (T7.4)
Interruption = Literal["stop", "hand_over", "lost", "idle_timeout"]


class TurnRun:
    """One run of a turn in this process; a takeover or a hand-over makes another."""

    def __init__(self, turn: Claimed, services: Services, prepared: Prepared | None = None) -> None:
        self.turn = turn
        self.services = services
        self._prepared = prepared
        self.outbox = services.publisher.open(
            session_id=str(turn.session_id), turn_id=str(turn.turn_id), user_id=turn.user_id, fence=turn.fence
        )
        self.recorder = Recorder(turn, services, self.outbox, model="")
        self.loop: Loop | None = None
        self.began_at = time.monotonic()
        self.progressed_at = self.told_at = self.began_at
        self._interruption: Interruption | None = "stop" if turn.stopped else None
        self.task: asyncio.Task[None] | None = None
        self._ending = False  # whether it ends is being decided in Postgres: nothing may cut that short
        self.over = False

    # --- from outside ----------------------------------------------------------------------------

    def interrupt(self, why: Interruption) -> None:
        """End this run soon; the first reason given counts, but a lost fence overrides any other."""
        if self.over or (self._interruption is not None and why != "lost"):
            return
        self._interruption = why
        if self.task is not None and not self._ending:
            self.task.cancel()

    def watch(self, now: float) -> None:
        """Called every second: a sign of life in silence, and an end to a silence that lasts (A3.3, A3.4)."""
        if self.loop is None or self.over:
            return
        if now - self.progressed_at > settings.STREAM_IDLE_SECONDS:
            self.interrupt("idle_timeout")
        elif now - self.told_at >= settings.HEARTBEAT_SECONDS:
            self.told_at = now
            self.recorder.publish(
                TurnHeartbeat(phase=self.loop.phase, elapsed_seconds=int(now - self.began_at))
            )

    # --- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exactly one ending, or none of ours: a hand-over and a lost fence leave it to the next run."""
        self.task = asyncio.current_task()
        with context.bound(self._context()):
            try:
                await self._play()
            except asyncio.CancelledError:
                if self._interruption is None:
                    raise
                await self._after_interruption()
            except FenceLost:
                self._leave()
            finally:
                self.over = True

    def _context(self) -> context.TurnContext:
        turn = self.turn
        return context.TurnContext(
            user_id=turn.user_id,
            session_id=str(turn.session_id),
            turn_id=str(turn.turn_id),
            fence=turn.fence,
            origin=turn.origin,
            permissions=turn.permissions,
            channel=context.CHANNELS[turn.origin],
        )

    async def _play(self) -> None:
        if self._interruption is None or self._prepared is not None:
            prepared = await uncut(self._begin())
        if self._interruption is not None:
            raise asyncio.CancelledError
        if prepared.mended.answered:
            await self._succeed(Answered())
            return
        self.loop = loop = self._loop(prepared)
        while True:
            ending = await self._play_once(loop)
            if isinstance(ending, Failed):
                await self._fail(ending.code, ending.details)
                return
            if await self._succeed(ending):
                return

    async def _begin(self) -> Prepared:
        """What waited has its place and is told of, whatever comes between."""
        prepared = self._prepared
        if prepared is None:
            prepared = await retried(prepare, self.turn)
        self.recorder.model = prepared.chain[0].name
        self.recorder.calls_begun = prepared.calls_begun
        await self._announce(prepared)
        return prepared

    async def _play_once(self, loop: Loop) -> Answered | Failed:
        async with aclosing(loop.play()) as parts:
            async for part in parts:
                if isinstance(part, Answered | Failed):
                    return part
                self.progressed_at = self.told_at = time.monotonic()
                if isinstance(part, TextExtended | ReasoningExtended):
                    await self.recorder.record(part)  # only remembered, so nothing to cut short
                else:
                    await uncut(self.recorder.record(part))
        raise AssertionError("the loop ended without saying how")

    def _loop(self, prepared: Prepared) -> Loop:
        mended = prepared.mended
        entry = prepared.chain[0]
        continuing = None
        if mended.continuing is not None:
            self.recorder.resume(row_uuid(mended.continuing), mended.continuing.content)
            continuing = Continuing(row_id=row_uuid(mended.continuing), length=len(mended.continuing.content))
        return Loop(
            system=prompt.system_text(),
            messages=list(prompt.build(mended.rows, turn_id=str(self.turn.turn_id), entry=entry)),
            chain=prepared.chain,
            ports=Ports(
                provider=provider_for,
                toolbox=TurnToolbox(context.current()),
                follow_ups=taking.Boundary(self.turn, self.recorder),
                clock=SystemClock(),
                call_id=partial(usage.call_id, self.turn.turn_id),
                learned=LESSONS,
                credential=_credential_now,
            ),
            limits=Limits(max_rounds=settings.TURN_MAX_ROUNDS, max_seconds=settings.TURN_MAX_SECONDS),
            thinking_tokens=settings.THINKING_TOKENS if self.turn.mode != "fast" else 0,
            first_call_number=self.turn.calls + 1,
            first_round=max(1, self.turn.calls),
            elapsed_seconds=self.turn.running_seconds,
            pending_calls=mended.pending_calls,
            continuing=continuing,
        )

    async def _announce(self, prepared: Prepared) -> None:
        """The start, what joined it, and what an earlier run left to be mended."""
        publish = self.recorder.publish
        if prepared.taken:
            await taking.tell(self.turn, self.recorder, prepared.taken)
        publish(
            TurnStarted(
                model=prepared.chain[0].name,
                tier=self.turn.tier or "standard",
                mode=self.turn.mode,
                resumed=self.turn.resumed,
                run_ids=self.turn.run_ids,
            )
        )
        for row in prepared.mended.finished:
            await self._finish_row(row)
        for result in prepared.mended.results:
            await self.recorder.record(result)

    async def _finish_row(self, row: Row) -> None:
        self.recorder.resume(row_uuid(row), row.content)
        kind = ReasoningEnded if row.kind == "reasoning" else TextEnded
        await self.recorder.record(kind(block_id=row.id, row_id=row.id))

    # --- endings ---------------------------------------------------------------------------------

    async def _succeed(self, answered: Answered) -> bool:
        """End as succeeded; False when something was queued that this turn goes on with (T6.3)."""
        may_go_on = self.loop is not None and self.loop.can_go_on and answered.limit_code is None
        try:
            ended = await self._end(
                turns.SUCCEEDED, limit_code=answered.limit_code or "", unless_pending=may_go_on
            )
        except TurnConflict:
            if not may_go_on:
                raise FenceLost(f"turn {self.turn.turn_id} was ended by somebody else") from None
            if await uncut(self._go_on()):
                return False
            ended = await self._end_or_lose(turns.SUCCEEDED)
        event = TurnSucceeded(run_ids=ended.run_ids, summary=self._summary(), limit_code=answered.limit_code)
        await self._over(event, ended, keep_through=None)
        return True

    async def _go_on(self) -> bool:
        """Take what is queued into this turn, if it may join."""
        taken = await in_thread(taking.at_turn_end, self.turn)
        if not taken:
            return False
        await taking.tell(self.turn, self.recorder, taken)
        assert self.loop is not None
        self.loop.go_on([UserMessage(text=text) for text in await in_thread(taking.texts, taken)])
        return True

    async def _fail(self, code: str, details: str = "") -> None:
        notice_id = await self.recorder.notice(code, details)
        await self._close_questions()
        ended = await self._end_or_lose(turns.FAILED, failure_code=code)
        event = TurnFailed(run_ids=ended.run_ids, code=code, notice_id=str(notice_id))
        await self._over(event, ended, keep_through=EVERYTHING_STAYS)

    async def _end_or_lose(self, to: Turn.Status, *, failure_code: str = "", reason: str = "") -> Ended:
        try:
            return await self._end(to, failure_code=failure_code, reason=reason)
        except TurnConflict as conflict:
            raise FenceLost(f"turn {self.turn.turn_id} was ended by somebody else") from conflict

    async def _end(
        self,
        to: Turn.Status,
        *,
        failure_code: str = "",
        limit_code: str = "",
        reason: str = "",
        unless_pending: bool = False,
    ) -> Ended:
        turn_id, fence, summary = self.turn.turn_id, self.turn.fence, self._summary()

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
                    summary=summary,
                    unless_pending=unless_pending,
                )
            except TurnConflict:  # of a second try: the first may have come through before the database went
                ended = turns.ended_already(turn_id, fence, to) if number > 1 else None
                if ended is None:
                    raise
                return ended

        interruption, self._ending = self._interruption, True
        try:
            ended = await retried(end, None)
        except TurnConflict:
            if self._interruption != interruption and asyncio.current_task() is self.task:
                raise asyncio.CancelledError from None  # it came meanwhile, and was kept waiting
            raise
        finally:
            self._ending = False
        self.over = True
        return ended

    async def _over(self, event: Ending, ended: Ended, *, keep_through: int | None) -> None:
        """Tell the ending, then let the session go or start what follows."""
        await self.recorder.settle()
        self.outbox.fence = None  # Postgres has decided for us: no fence, known to Redis or not, refuses it
        self.recorder.publish(event)
        self.recorder.publish(
            SessionChanged(title=ended.title, pinned=ended.pinned, archived=ended.archived, state="idle")
        )
        await self.services.publisher.flush(self.outbox)
        await in_thread(after_turn, self.turn.session_id, self.turn.token, keep_through)

    def _summary(self) -> TurnSummary:
        loop = self.loop
        accepted = self.turn.created_at
        if loop is None:  # nothing was played in this run
            duration = int((datetime.now(UTC) - accepted).total_seconds() * 1000)
            return TurnSummary(
                duration_ms=duration,
                first_token_ms=None,
                tokens_per_second=None,
                rounds=0,
                tokens=Tokens(),
                model=self.recorder.model,
            )
        seconds = loop.generation_seconds
        first = loop.first_token_at
        waited = (
            (datetime.now(UTC) - accepted).total_seconds() - (time.monotonic() - first) if first else None
        )
        return TurnSummary(
            duration_ms=int((datetime.now(UTC) - accepted).total_seconds() * 1000),
            first_token_ms=int(waited * 1000) if waited is not None else None,
            tokens_per_second=round(loop.tokens.output / seconds, 1) if seconds > 0 else None,
            rounds=loop.rounds,
            tokens=loop.tokens,
            model=loop.entry.name,
        )

    # --- interruptions ---------------------------------------------------------------------------

    async def _after_interruption(self) -> None:
        """Final writes run in a task of their own: a second cancellation cannot cut them short (A1.7)."""
        final = asyncio.ensure_future(self._interrupted())
        await asyncio.wait([final], timeout=FINAL_WRITES_SECONDS)
        if not final.done():
            final.cancel()
            log.error("the final writes of turn %s took too long; the sweep will end it", self.turn.turn_id)
        elif (problem := final.exception()) is not None:
            if not isinstance(problem, FenceLost):
                raise problem
            self._leave()

    async def _interrupted(self) -> None:
        match self._interruption:
            case "stop":
                await self._close_open("Stopped by the user before it finished.")
                await self._stopped()
            case "idle_timeout":
                await self._close_open("Failed: nothing was heard for too long.")
                await self._fail("idle_timeout")
            case "hand_over":
                await self._hand_over()
            case "lost" | None:
                self._leave()

    async def _stopped(self) -> None:
        await self._close_questions()
        await self.recorder.notice("stopped")
        ended = await self._end_or_lose(turns.CANCELLED, reason="user")
        keep_through = EVERYTHING_STAYS if ended.stop_through is None else ended.stop_through
        await self._over(
            TurnCancelled(run_ids=ended.run_ids, reason="user"), ended, keep_through=keep_through
        )

    async def _close_questions(self) -> None:
        for question_id in await in_thread(questions.close_for_turn, self.turn.turn_id, "cancelled"):
            self.recorder.publish(QuestionClosed(question_id=str(question_id), outcome="cancelled"))

    async def _close_open(self, result: str) -> None:
        """Keep everything that was produced; no block, call or step is left open (A3.5, T7.2)."""
        loop = self.loop
        if loop is None:
            await self._close_earlier(result)
            return
        if (block := loop.open_block) is not None:
            await self.recorder.record(block)
        for open_call in loop.open_calls or _to_repeat(loop):
            if not open_call.made:
                await self.recorder.record(CallMade(row_id=open_call.row_id, call=open_call.call))
            outcome = unfinished_outcome(open_call.call, result)
            await self.recorder.record(ResultMade(row_id=uuid4(), outcome=outcome))
        if (step := loop.open_step) is not None:
            self.recorder.publish(step)
        if (call := loop.open_call()) is not None:
            await self.recorder.record(call)

    async def _close_earlier(self, result: str) -> None:
        """The same for what an earlier run of the turn left open, when this one has not begun."""
        if self.turn.resumed:
            turn = self.turn
            for event in await in_thread(close_open, turn.session_id, turn.turn_id, result, fence=turn.fence):
                self.recorder.publish(event)

    async def _hand_over(self) -> None:
        """A planned shutdown: checkpoint, and give the turn to another worker (A1.8, T9.4)."""
        if self.loop is not None and (call := self.loop.open_call()) is not None:
            await self.recorder.record(call)
        await self.services.checkpoint()
        await self.services.publisher.flush(self.outbox)
        self.recorder.abandon()
        lost = self.turn.handovers >= turns.MAX_HANDOVERS
        await in_thread(taking.give_away, self.turn, lost=lost)

    async def break_off(self) -> None:
        """Something of ours failed: keep what was produced, and say so (T5.4)."""
        with context.bound(self._context()):
            await self._close_open("Failed before it finished.")
            await self._fail("unknown")

    def _leave(self) -> None:
        log.warning("turn %s belongs to another worker now", self.turn.turn_id)
        self.recorder.abandon()


def _to_repeat(loop: Loop) -> tuple[OpenCall, ...]:
    """Calls of an earlier run that would have run again: their rows stand."""
    return tuple(OpenCall(row_id=uuid4(), call=call, made=True) for call in loop.pending_calls)


async def _credential_now(entry: Entry) -> str:
    return await in_thread(catalogue.credential_of, entry)
